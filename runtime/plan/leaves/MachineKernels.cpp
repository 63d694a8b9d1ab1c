// Kernels, by their programs: one leaf after the other.
#include "runtime/base/Text.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Words.h"
#include "runtime/plan/leaves/Machine.h"

namespace sheaf::plan {

// Calls visit(byte, elements) for the pieces of a leaf's elements in memory, in order.
template <typename Visit>
void Machine::forEachPiece(const ProgramLine& line, int64_t leaves, int64_t leaf, Visit visit) {
  const int64_t width = static_cast<int64_t>(elementBytes(line.type)), inner = line.elements() / line.outer;
  for (int64_t o = 0; o < line.outer; ++o) {
    const int64_t begin = (o * leaves + leaf) * inner;
    if (!line.pitch) {
      visit(static_cast<uint64_t>(begin * width), static_cast<uint64_t>(inner));
      continue;
    }
    if (inner % line.columns() != 0) return fail("a leaf has a part of a padded row");
    for (int64_t row = begin / line.columns(); row < (begin + inner) / line.columns(); ++row)
      visit(static_cast<uint64_t>(row * line.pitch * width), static_cast<uint64_t>(line.columns()));
  }
}

Contents Machine::load(int64_t rank, const Operand& operand, const ProgramLine& line, int64_t leaves, int64_t leaf) {
  Contents contents;
  const uint64_t width = elementBytes(line.type);
  forEachPiece(line, leaves, leaf, [&](uint64_t begin, uint64_t elements) {
    for (const Run& run : read(rank, operand, begin, elements * width).runs) contents.add(run);
  });
  return toElements(contents, width);
}

void Machine::store(int64_t rank, const Operand& operand, const ProgramLine& line, int64_t leaves, int64_t leaf,
                    const Contents& contents) {
  const uint64_t width = elementBytes(line.type);
  const Contents all = toBytes(contents, width);
  size_t run = 0;
  uint64_t used = 0;
  forEachPiece(line, leaves, leaf, [&](uint64_t begin, uint64_t elements) {
    Contents piece;
    for (uint64_t missing = elements * width; missing > 0 && run < all.runs.size();) {
      const uint64_t length = std::min(missing, all.runs[run].length - used);
      piece.add(all.runs[run].part(used, length));
      missing -= length;
      used += length;
      if (used == all.runs[run].length) ++run, used = 0;
    }
    write(rank, operand, begin, piece);
  });
}

Contents Machine::evaluate(const ProgramLine& line, const KernelProgram& program,
                           std::span<const Contents* const> operands) {
  const uint64_t elements = static_cast<uint64_t>(line.elements());
  Contents result;
  switch (line.kind) {
    case ProgramLine::kMap:
      // What is widened on its way keeps its value.
      if (const ElementType from = program.lines[line.of[0]].type;
          line.name == "cast" && !line.attributes && isWidened(from) && line.type == computedType(from))
        return *operands[0];
      return map(line.name, line.attributes, line.name == "cast" ? line.type : widened(line.type), operands);
    case ProgramLine::kSame:
      return *operands[0];
    case ProgramLine::kSplat:
      result.add({elements, Term("splat").add(line.attributes).hash(), 0, true});
      return result;
    case ProgramLine::kSpread:
      // Of one element no shape matters.
      if (const std::vector<Run>& runs = operands[0]->runs;
          runs.size() == 1 && (runs[0].splat || runs[0].length == 1)) {
        result.add({elements, runs[0].value, runs[0].index, true});
        return result;
      }
      [[fallthrough]];
    default: {
      Term term("whole");
      term.add(line.name).add(line.attributes).add(widened(line.type));
      for (int64_t size : line.shape) term.add(static_cast<uint64_t>(size));
      for (size_t i = 0; i < operands.size(); ++i) {
        for (int64_t size : program.lines[line.of[i]].shape) term.add(static_cast<uint64_t>(size));
        term.add(hashOf(*operands[i]));
      }
      work();
      if (makers_) {
        std::vector<uint64_t> of;
        for (const Contents* operand : operands) addValues(*operand, of);
        note(term.hash(), Term(line.name).add(line.attributes).hash(), std::move(of));
      }
      result.add({elements, term.hash(), 0, false});
      return result;
    }
  }
}

void Machine::kernel(const Instruction& launch, int64_t rank) {
  const KernelProgram& program = programs_[launch.kernel().kernel()];
  if (program.lines.empty()) return fail("its kernel does not state what it computes; compile the model again");
  const size_t leaves = static_cast<size_t>(program.leaves);
  // Of each line, for each leaf; one for all where it depends on no leaf.
  std::vector<std::vector<Contents>> values;
  int operand = 0;
  auto of = [&](uint32_t line, size_t leaf) -> const Contents& {
    return values[line][values[line].size() > 1 ? leaf : 0];
  };
  for (const ProgramLine& line : program.lines) {
    if (line.kind == ProgramLine::kResult) break;
    size_t count = line.leaves > 1 ? leaves : 1;
    for (uint32_t i : line.of) count = std::max(count, values[i].size());
    std::vector<Contents>& made = values.emplace_back();
    for (size_t leaf = 0; leaf < count; ++leaf) {
      if (line.kind == ProgramLine::kOperand) {
        made.push_back(load(rank, launch.operands(operand), line, std::max<int64_t>(line.leaves, 1), int64_t(leaf)));
      } else {
        std::vector<const Contents*> operands;
        for (uint32_t i : line.of) operands.push_back(&of(i, leaf));
        made.push_back(evaluate(line, program, operands));
      }
      if (!status_.ok()) return;
    }
    operand += line.kind == ProgramLine::kOperand;
  }
  for (const ProgramLine& line : program.lines) {
    if (line.kind != ProgramLine::kResult) continue;
    // A cast has rounded already, and so has the writer of an operand.
    uint32_t from = line.of[0];
    while (program.lines[from].kind == ProgramLine::kSame) from = program.lines[from].of[0];
    const bool rounds =
        isWidened(line.type) && program.lines[from].kind != ProgramLine::kOperand && program.lines[from].name != "cast";
    const size_t count = static_cast<size_t>(std::max<int64_t>(line.leaves, 1));
    if (count == 1 && values[line.of[0]].size() > 1)
      return fail("its program stores what differs from leaf to leaf in a place that all leaves share");
    for (size_t leaf = 0; leaf < count && status_.ok(); ++leaf)
      store(rank, launch.operands(operand), line, std::max<int64_t>(line.leaves, 1), int64_t(leaf),
            rounds ? rounded(line.type, of(line.of[0], leaf)) : of(line.of[0], leaf));
    ++operand;
  }
}

}  // namespace sheaf::plan
