#include "runtime/plan/leaves/Machine.h"

#include <algorithm>
#include <bit>

#include "runtime/base/Text.h"
#include "runtime/plan/MicroBatches.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Words.h"
#include "runtime/plan/leaves/CallMachine.h"

namespace sheaf::plan {
namespace {

// Elements that constants often repeat, as eight bytes: 0 and true, 1, -1, the largest and the smallest numbers of the
// floats and integers, and what masks add.
constexpr uint64_t kRepeated[] = {0,
                                  0x0101010101010101,
                                  1,
                                  0x0000000100000001,
                                  0xffffffffffffffff,
                                  0x3f8000003f800000,
                                  0xbf800000bf800000,
                                  0x7f8000007f800000,
                                  0xff800000ff800000,
                                  0xff7fffffff7fffff,
                                  0xce6e6b28ce6e6b28,
                                  0xc61c4000c61c4000,
                                  0x3ff0000000000000,
                                  0x7ff0000000000000,
                                  0xfff0000000000000,
                                  0x3f803f803f803f80,
                                  0xff80ff80ff80ff80,
                                  0x3c003c003c003c00,
                                  0xfc00fc00fc00fc00};

// Which of them a constant repeats, by the hash of its bytes. It may be there for each row of a leaf, so that there is
// more of it where a rank has more leaves.
std::optional<uint64_t> repeated(const Source& source) {
  if (source.hashes_size() != 1 || source.length() > kSourceHashBytes) return std::nullopt;
  std::vector<uint64_t> bytes((source.length() + sizeof(uint64_t) - 1) / sizeof(uint64_t));
  for (uint64_t element : kRepeated) {
    std::fill(bytes.begin(), bytes.end(), element);
    if (xxh64(std::as_bytes(std::span(bytes)).first(source.length())) == source.hashes(0)) return element;
  }
  return std::nullopt;
}

}  // namespace

ElementType Machine::widened(ElementType type) {
  return computedType(type);
}

uint64_t zeroValue() {
  static const uint64_t value = Term("zero").hash();
  return value;
}

Machine::Machine(const Plan& plan, Makers* makers, uint64_t most) : plan_(plan), makers_(makers), left_(most) {
  const size_t ranks = static_cast<size_t>(plan.ranks());
  memory_.assign(ranks, std::vector<Bytes>(static_cast<size_t>(plan.buffers_size())));
  written_.resize(ranks);
  for (const Kernel& kernel : plan.kernels()) {
    Expected<KernelProgram> program = programOf(kernel);
    if (!program.ok()) fail(cat("kernel '", shortName(kernel.symbol()), "': ", program.status().message()));
    programs_.push_back(program.ok() ? std::move(*program) : KernelProgram());
  }
  initialize();
}

void Machine::fail(std::string message) {
  if (!status_.ok()) return;
  status_ = Status::error(current_ ? cat(describe(plan_, *current_), ": ", message) : message);
}

void Machine::work(uint64_t pieces) {
  exhausted_ |= left_ < pieces && status_.ok();
  if (left_ < pieces) return fail("its values have too many pieces to be followed");
  left_ -= pieces;
}

void Machine::noteSource(uint64_t value, std::string name) {
  if (makers_) makers_->try_emplace(value, Made{nullptr, std::move(name), value, {}});
}

void Machine::note(uint64_t value, uint64_t operation, std::vector<uint64_t> of) {
  if (makers_) makers_->try_emplace(value, Made{current_, {}, operation, std::move(of)});
}

void Machine::addValues(const Contents& contents, std::vector<uint64_t>& values) {
  constexpr size_t kFirst = 64;
  for (size_t i = 0; i < std::min(kFirst, contents.runs.size()); ++i) values.push_back(contents.runs[i].value);
}

void Machine::initialize() {
  for (const Bucket& bucket : plan_.buckets()) {
    const std::string of = cat(" of bucket '", shortName(bucket.name()), "'");
    state(bucket.parameter_buffer(), Term("parameters").add(bucket.name()).hash(), parameterParts(plan_, bucket),
          cat("the parameters", of));
    for (const State& s : bucket.states())
      state(s.buffer(), Term("state").add(bucket.name()).add(s.name()).hash(), stateParts(plan_, bucket),
            cat("the state '", shortName(s.name()), "'", of));
  }
  if (plan_.has_loss_scale_buffer())
    state(plan_.loss_scale_buffer(), Term("loss scale").hash(), 1, "the state of the loss scale");
  for (const Constant& c : plan_.constants()) constant(c);
}

// Whole, or the rank's part of it.
void Machine::state(uint32_t buffer, uint64_t value, int64_t parts, std::string name) {
  noteSource(value, std::move(name));
  const uint64_t own = plan_.buffers(static_cast<int>(buffer)).bytes();
  for (int64_t rank = 0; rank < plan_.ranks(); ++rank)
    memory_[static_cast<size_t>(rank)][buffer].write(
        0, {own, value, partOf(plan_, rank, static_cast<uint64_t>(parts)) * own, false});
}

// By the hashes of its bytes, or else by its place in a file.
void Machine::constant(const Constant& constant) {
  const Source& source = constant.source();
  Term term("constant");
  term.add(source.length());
  for (uint64_t hash : source.hashes()) term.add(hash);
  if (source.hashes_size() == 0 && source.file() < static_cast<uint32_t>(plan_.files_size()))
    term.add(plan_.files(static_cast<int>(source.file())).hash()).add(source.offset());
  const std::optional<uint64_t> element = repeated(source);
  const uint64_t value = !element ? term.hash() : *element ? Term("repeated").add(*element).hash() : zeroValue();
  noteSource(value, "a constant");
  const uint64_t size = plan_.buffers(static_cast<int>(constant.buffer())).bytes();
  for (std::vector<Bytes>& memory : memory_) memory[constant.buffer()].write(0, {size, value, 0, element.has_value()});
}

void Machine::execute(const InstructionList& list, int64_t microBatch) {
  microBatch_ = microBatch;
  evaluates_ = &list == &plan_.evaluation();
  for (const Instruction& instruction : list) {
    if (!status_.ok()) return;
    current_ = &instruction;
    step(instruction);
  }
  current_ = nullptr;
}

void Machine::step(const Instruction& instruction) {
  if (instruction.has_collective()) return collective(instruction);
  const Operand& source = sourceOf(instruction);
  for (int64_t rank = 0; rank < plan_.ranks() && status_.ok(); ++rank) switch (instruction.kind_case()) {
      case Instruction::kKernel:
        kernel(instruction, rank);
        break;
      case Instruction::kCall:
        executeCall(*this, instruction, rank);
        break;
      case Instruction::kInput:
        input(instruction, rank);
        break;
      case Instruction::kScalars:
        scalars(instruction, rank);
        break;
      case Instruction::kOutput:
        written_[static_cast<size_t>(rank)].push_back({&instruction, read(rank, source, 0, source.bytes())});
        break;
      case Instruction::kTransfer:
        write(rank, destinationOf(instruction), 0, read(rank, source, 0, source.bytes()));
        break;
      case Instruction::kPersist:
        for (const Generation& generation : plan_.generations())
          std::swap(memory_[static_cast<size_t>(rank)][generation.current()],
                    memory_[static_cast<size_t>(rank)][generation.next()]);
        break;
      case Instruction::kCollective:
      case Instruction::kRecord:
      case Instruction::kWait:
      case Instruction::KIND_NOT_SET:
        break;
    }
}

//===--- Memory ---===//

Bytes& Machine::bytes(int64_t rank, const Operand& operand) {
  return memory_[static_cast<size_t>(rank)][operand.buffer()];
}

uint64_t Machine::address(int64_t rank, const Operand& operand) const {
  return operand.offset() + rankOffset(plan_, operand, rank);
}

Contents Machine::contents(int64_t rank, uint32_t buffer, uint64_t begin, uint64_t length) {
  Contents contents;
  memory_[static_cast<size_t>(rank)][buffer].read(begin, length, [&](const Run& run) {
    work();
    contents.add(run);
  });
  return contents;
}

Contents Machine::read(int64_t rank, const Operand& operand, uint64_t offset, uint64_t length) {
  return contents(rank, operand.buffer(), address(rank, operand) + offset, length);
}

void Machine::write(int64_t rank, const Operand& operand, uint64_t offset, const Contents& contents) {
  uint64_t at = address(rank, operand) + offset;
  work(contents.runs.size());
  for (const Run& run : contents.runs) {
    bytes(rank, operand).write(at, run);
    at += run.length;
  }
}

uint64_t Machine::sequence(int64_t rank, const Operand& operand, const Strided& place) {
  Sequence sequence;
  collect(bytes(rank, operand), address(rank, operand) + place.offset, place.dimensions, place.width, sequence);
  return sequence.hash();
}

void Machine::collect(const Bytes& bytes, uint64_t base, std::span<const Strided::Dimension> dimensions, uint64_t width,
                      Sequence& sequence) {
  if (!status_.ok()) return;
  if (dimensions.empty()) {
    bytes.read(base, width, [&](const Run& run) {
      work();
      sequence.add(run);
      if (makers_ && collected_) collected_->push_back(run.value);
    });
    return;
  }
  // One run holds all of it, or the outermost dimension is taken apart.
  uint64_t before = 0, after = width;
  for (const Strided::Dimension& d : dimensions) {
    const uint64_t reach = (d.count - 1) * static_cast<uint64_t>(std::abs(d.step));
    (d.step < 0 ? before : after) += reach;
  }
  if (const Run all = bytes.uniform(base - before, before + after); all.length > 0) {
    if (makers_ && collected_) collected_->push_back(all.value);
    auto emit = [&](auto& self, uint64_t at, size_t d) -> void {
      if (d == dimensions.size()) {
        work();
        return sequence.add(all.part(at, width));
      }
      for (uint64_t i = 0; i < dimensions[d].count && status_.ok(); ++i)
        self(self, at + i * static_cast<uint64_t>(dimensions[d].step), d + 1);
    };
    return emit(emit, before, 0);
  }
  for (uint64_t i = 0; i < dimensions[0].count && status_.ok(); ++i)
    collect(bytes, base + i * static_cast<uint64_t>(dimensions[0].step), dimensions.subspan(1), width, sequence);
}

void Machine::writeValue(int64_t rank, const Operand& operand, const Strided& place, uint64_t value) {
  uint64_t index = 0;
  auto fill = [&](auto& self, uint64_t at, size_t d) -> void {
    if (d == place.dimensions.size()) {
      work();
      bytes(rank, operand).write(at, {place.width, value, index, false});
      index += place.width;
      return;
    }
    const Strided::Dimension& dimension = place.dimensions[d];
    for (uint64_t i = 0; i < dimension.count && status_.ok(); ++i)
      self(self, at + i * static_cast<uint64_t>(dimension.step), d + 1);
  };
  fill(fill, address(rank, operand) + place.offset, 0);
}

Contents Machine::toElements(const Contents& bytes, uint64_t width) {
  if (width == 1) return bytes;
  Contents elements;
  for (const Run& run : bytes.runs) {
    if (run.length % width != 0) {
      fail("reads a part of an element that another instruction wrote");
      return {};
    }
    uint64_t value = run.value;
    if (const uint64_t inside = run.index % width) value = Term("from the middle").add(value).add(inside).hash();
    elements.add({run.length / width, value, run.index / width, run.splat});
  }
  return elements;
}

Contents Machine::toBytes(const Contents& elements, uint64_t width) {
  Contents bytes;
  for (const Run& run : elements.runs) bytes.add({run.length * width, run.value, run.index * width, run.splat});
  return bytes;
}

//===--- Elementwise ---===//

Contents Machine::map(std::string_view name, uint64_t attributes, ElementType type,
                      std::span<const Contents* const> operands) {
  Contents result;
  std::vector<size_t> run(operands.size(), 0);
  std::vector<uint64_t> used(operands.size(), 0);  // of the run
  const uint64_t operation = Term(name).add(attributes).add(type).hash();
  // Zeros stay zeros, exactly: so the padding of buckets is the same whatever it was added to.
  const bool keepsZero = name == "add" || name == "cast";
  while (status_.ok()) {
    uint64_t length = UINT64_MAX;
    for (size_t i = 0; i < operands.size(); ++i) {
      if (run[i] == operands[i]->runs.size()) return result;
      length = std::min(length, operands[i]->runs[run[i]].length - used[i]);
    }
    std::vector<uint64_t> of;
    std::optional<uint64_t> first;  // index of the first operand that moves
    bool zeros = true;
    Term term("map");
    term.add(operation);
    for (size_t i = 0; i < operands.size(); ++i) {
      const Run piece = operands[i]->runs[run[i]].part(used[i], length);
      zeros &= piece.value == zeroValue();
      if (!piece.splat && !first) first = piece.index;
      term.add(piece.value).add(piece.splat ? piece.index : piece.index - *first);
      term.add(static_cast<uint64_t>(piece.splat));
      if (makers_) of.push_back(piece.value);
      used[i] += length;
      if (used[i] == operands[i]->runs[run[i]].length) ++run[i], used[i] = 0;
    }
    work();
    note(term.hash(), operation, std::move(of));
    result.add(keepsZero && zeros ? Run{length, zeroValue(), 0, true}
                                  : Run{length, term.hash(), first.value_or(0), !first});
  }
  return result;
}

Contents Machine::rounded(ElementType type, const Contents& contents) {
  if (!isWidened(type)) return contents;
  const Contents* const operand = &contents;
  return map("cast", 0, type, {&operand, 1});
}

Contents Machine::tree(ElementType type, std::span<const Contents> terms) {
  if (terms.size() == 1) return terms.front();
  const Contents left = tree(type, terms.first(terms.size() / 2)), right = tree(type, terms.last(terms.size() / 2));
  const Contents* const both[] = {&left, &right};
  return rounded(type, map("add", 0, widened(type), both));
}

Contents Machine::sum(ElementType type, std::span<const Contents> terms, const Contents* before) {
  if (plan_.training().reduce_order() == Training::RING && terms.size() > 1 && !before) {
    std::vector<const Contents*> all;
    for (const Contents& term : terms) all.push_back(&term);
    return rounded(type, map("ring", terms.size(), widened(type), all));
  }
  const size_t subtree = size_t{1} << std::countr_zero(terms.size());
  Contents all = before ? *before : tree(type, terms.first(subtree));
  for (size_t i = before ? 0 : subtree; i < terms.size(); i += subtree) {
    const Contents next = tree(type, terms.subspan(i, subtree));
    const Contents* const both[] = {&all, &next};
    all = rounded(type, map("add", 0, widened(type), both));
  }
  return all;
}

//===--- Instructions ---===//

uint64_t Machine::dataIndex(int64_t rank) const {
  if (evaluates_) return static_cast<uint64_t>(rank);
  const PiecesOfRanks pieces = piecesOfRanks(plan_, microBatch_);
  return static_cast<uint64_t>(pieces.first + rank * pieces.stride);
}

void Machine::input(const Instruction& instruction, int64_t rank) {
  const Input& from = plan_.inputs(static_cast<int>(instruction.input().input()));
  const Operand& destination = destinationOf(instruction);
  const uint64_t size = destination.bytes(), begin = from.whole() ? 0 : dataIndex(rank) * size;
  Contents contents;
  const uint64_t value = Term("input").add(from.name()).hash();
  noteSource(value, cat("input '", shortName(from.name()), "'"));
  contents.add({size, value, begin, false});
  write(rank, destination, 0, contents);
}

void Machine::scalars(const Instruction& instruction, int64_t rank) {
  Contents contents;
  for (const StepScalar& scalar : plan_.scalars()) {
    const uint64_t value = Term("scalar").add(scalar.kind()).addReal(scalar.value()).add(scalar.group()).hash();
    noteSource(value, cat("step scalar ", word(scalar.kind())));
    contents.add({4, value, 0, false});
  }
  write(rank, destinationOf(instruction), 0, contents);
}

void Machine::collective(const Instruction& instruction) {
  const Collective& collective = instruction.collective();
  const Operand &source = sourceOf(instruction), &destination = destinationOf(instruction);
  const Axis axis = axisOf(plan_, collective);
  const uint64_t width = elementBytes(collective.type()), part = collective.count() * width;
  const int64_t size = ranksOn(plan_, axis), groups = plan_.ranks() / size;
  std::vector<std::vector<int64_t>> members(static_cast<size_t>(groups), std::vector<int64_t>(size_t(size), 0));
  for (int64_t rank = 0; rank < plan_.ranks(); ++rank)
    members[static_cast<size_t>(groupOn(plan_, axis, rank))][static_cast<size_t>(placeOn(plan_, axis, rank))] = rank;
  for (const std::vector<int64_t>& group : members) {
    // All read before one writes.
    std::vector<Contents> results;
    if (collective.op() == ALL_GATHER) {
      Contents all;
      for (int64_t rank : group)
        for (const Run& run : read(rank, source, 0, part).runs) all.add(run);
      results.assign(group.size(), all);
    } else {
      const bool scatters = collective.op() == REDUCE_SCATTER;
      for (size_t place = 0; place < (scatters ? group.size() : 1) && status_.ok(); ++place) {
        std::vector<Contents> terms;
        for (int64_t rank : group) terms.push_back(toElements(read(rank, source, place * part, part), width));
        // All ranks of an all-reduce hold the same.
        std::vector<Contents> before;
        if (continues(instruction)) before.push_back(toElements(read(group[place], destination, 0, part), width));
        results.push_back(toBytes(sum(collective.type(), terms, before.empty() ? nullptr : before.data()), width));
      }
      if (!scatters) results.resize(group.size(), results.front());
    }
    if (!status_.ok()) return;
    for (size_t place = 0; place < group.size(); ++place) write(group[place], destination, 0, results[place]);
  }
}

}  // namespace sheaf::plan
