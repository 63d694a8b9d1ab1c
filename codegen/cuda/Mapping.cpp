#include "codegen/cuda/Mapping.h"

#include <numeric>

#include "llvm/Support/MathExtras.h"

using namespace mlir;

namespace sheaf::codegen {
namespace {

constexpr int64_t kVectorBytes = 16, kMostLanes = 8, kWarp = 32;
constexpr int64_t kThreads = 128;         // of a block, where it may have any number
constexpr int64_t kStreamThreads = 256;   // of one that only streams, or accumulates columns
constexpr int64_t kLongRowThreads = 512;  // of one that does a row in rounds
// Elements of a row in rounds that a thread asks for at once.
constexpr int64_t kElementsInRounds = 16;
// Vectors a thread may hold of a row.
constexpr int64_t kMostChunks = 8;
// 32-bit words of a row, of all operands together, that a thread may hold; of a block of more than 256 threads each
// has half the registers.
constexpr int64_t kWords = 96;
// Bytes that a streaming thread asks for at once, so that there are enough under way to hide memory's latency.
constexpr int64_t kBytesUnderWay = 64;

Type elementOf(Type type) {
  return cast<RankedTensorType>(type).getElementType();
}
int64_t bytesOf(Type element) {
  return std::max<int64_t>(1, element.getIntOrFloatBitWidth() / 8);
}

// What moves through memory for each element of the iteration space.
struct Traffic {
  int64_t widest = 1;   // bytes of the widest element; sums of columns are stored once
  int64_t loaded = 0;   // bytes of all elements that are loaded
  int64_t words = 0;    // 32-bit registers of an element of each operand and of each column's sum
  int64_t pitches = 0;  // the greatest common divisor of the distances between rows
};

Traffic trafficOf(const RowProgram& program) {
  Traffic traffic;
  train::FusionOp fusion = program.fusion;
  auto wordsOf = [](Type element) { return bytesOf(element) > 4 ? 2 : 1; };
  for (auto [argument, pitch] : llvm::zip(fusion.getBody().getArguments(), program.operandPitches)) {
    if (argument.use_empty() || !program.isVector(argument)) continue;
    traffic.pitches = std::gcd(traffic.pitches, pitch);
    Type element = elementOf(argument.getType());
    traffic.widest = std::max(traffic.widest, bytesOf(element));
    traffic.loaded += bytesOf(element);
    traffic.words += wordsOf(element);
  }
  for (auto [output, type, pitch] : llvm::zip(program.outputs, fusion.getResultTypes(), program.resultPitches)) {
    if (!program.isVector(output.value)) continue;
    traffic.pitches = std::gcd(traffic.pitches, pitch);
    if (output.kind == OutputKind::ColumnPartial)
      traffic.words += wordsOf(elementOf(type));
    else
      traffic.widest = std::max(traffic.widest, bytesOf(elementOf(type)));
  }
  traffic.words = std::max<int64_t>(traffic.words, 1);
  if (!traffic.pitches) traffic.pitches = program.columns;
  return traffic;
}

int64_t streamingChunks(const Traffic& traffic, int64_t lanes, int pressure) {
  int64_t bytes = std::max<int64_t>(1, traffic.loaded * lanes);
  return std::clamp<int64_t>((kBytesUnderWay / bytes) >> pressure, 1, 4);
}

int64_t threadsFor(int64_t vectors, int64_t most) {
  return std::min<int64_t>(llvm::PowerOf2Ceil(std::max<int64_t>(vectors, 1)), most);
}

// Rows that are reduced: as few threads as can hold one, within a warp if possible.
void mapReducedRows(const RowProgram& program, const Traffic& traffic, int pressure, Mapping& m) {
  int64_t vectors = llvm::divideCeil(program.columns, m.lanes);
  auto holds = [&](int64_t threads) {
    int64_t chunks = llvm::divideCeil(vectors, threads);
    int64_t words = (threads > kStreamThreads ? kWords / 2 : kWords) >> pressure;
    return chunks <= std::max<int64_t>(1, kMostChunks >> (pressure / 2)) && chunks * m.lanes * traffic.words <= words;
  };
  m.perRow = threadsFor(vectors, kWarp);
  while (m.perRow < kLongRowThreads && !holds(m.perRow)) m.perRow *= 2;
  m.chunks = llvm::divideCeil(vectors, m.perRow);
  if (!holds(m.perRow)) {
    // A processor has one such block: two vectors a thread keep 16 KiB under way, about what hides memory's latency.
    m.chunks = std::max<int64_t>(1, (kElementsInRounds / m.lanes) >> pressure);
    m.rounds = llvm::divideCeil(program.columns, m.span());
  }
}

}  // namespace

bool mayOverwriteRowOperand(const RowProgram& program) {
  train::FusionOp fusion = program.fusion;
  Block& body = fusion.getBody().front();
  for (auto [output, type] : llvm::zip(program.outputs, fusion.getResultTypes()))
    if (output.kind == OutputKind::Row)
      for (int64_t i : fusion.getElementwise())
        if (fusion.getOperand(i).getType() == type && !program.isVector(body.getArgument(i))) return true;
  return false;
}

Mapping chooseMapping(const RowProgram& program, int pressure) {
  Mapping m;
  Traffic traffic = trafficOf(program);
  m.lanes = std::clamp<int64_t>(kVectorBytes / traffic.widest, 1, kMostLanes);
  if (program.flat) {
    while (m.lanes > program.elements) m.lanes /= 2;
    m.perRow = kStreamThreads;
    m.chunks = streamingChunks(traffic, m.lanes, pressure);
    m.grid = m.tiles = llvm::divideCeil(program.elements / m.lanes * m.lanes, m.span());
    return m;
  }
  // Vectors of every row are aligned, and the last one ends where the row does, or else before the next row of every
  // operand and result begins.
  while (traffic.pitches % m.lanes != 0) m.lanes /= 2;
  bool reduces = llvm::any_of(program.reductions, [](const auto& pass) { return !pass.empty(); });
  int64_t vectors = llvm::divideCeil(program.columns, m.lanes);
  if (reduces) {
    mapReducedRows(program, traffic, pressure, m);
  } else {
    m.perRow = threadsFor(vectors, program.hasColumnPartials ? kWarp : kStreamThreads);
    if (!program.hasColumnPartials) m.chunks = streamingChunks(traffic, m.lanes, pressure);
    m.chunks = std::min<int64_t>(m.chunks, llvm::divideCeil(vectors, m.perRow));
    m.tiles = llvm::divideCeil(program.columns, m.span());
    // A block that stores a row's scalar must not do so while others still read the old value.
    if (mayOverwriteRowOperand(program) && m.tiles > 1) {
      m.perRow = threadsFor(vectors, kStreamThreads);
      m.rounds = llvm::divideCeil(program.columns, m.span());
      m.tiles = 1;
    }
  }
  // Groups beyond the rows there are would idle. Column sums of a row in rounds lie in memory, which has one owner.
  int64_t threads = program.hasColumnPartials ? kStreamThreads >> (pressure / 2) : kThreads;
  int64_t rows = program.hasColumnPartials ? program.block : program.rows;
  m.groups =
      std::min<int64_t>(threads / m.perRow, static_cast<int64_t>(llvm::PowerOf2Ceil(std::min(rows, program.rows))));
  if (program.hasColumnPartials && m.rounds > 1) m.groups = 1;
  m.groups = std::max({int64_t{1}, m.groups, kWarp / m.perRow});
  m.grid = llvm::divideCeil(program.rows, program.hasColumnPartials ? program.block : m.groups) * m.tiles;
  return m;
}

}  // namespace sheaf::codegen
