#include "runtime/plan/leaves/CallMachine.h"

#include <algorithm>

#include "runtime/base/Text.h"
#include "runtime/plan/StridedCopy.h"
#include "runtime/plan/Types.h"

namespace sheaf::plan {
namespace {

// A copy is followed piece by piece if it takes each entry of its outermost dimension into at most so many, and all of
// them into at most so many. Of another an entry becomes a value of its own.
constexpr int64_t kMostOfEntry = 1 << 16, kMostOfCopy = 1 << 22;

// What selects among so many rows, or adds up so many, is followed by the element of a row, which may be one of another
// leaf.
constexpr int64_t kMostRows = 256;

using Dimension = Strided::Dimension;

Strided dense(uint64_t offset, uint64_t bytes) {
  return {offset, {}, bytes};
}

// The same bytes in the same order, with fewer dimensions.
Strided simplified(Strided place) {
  std::erase_if(place.dimensions, [](const Dimension& d) { return d.count == 1; });
  while (!place.dimensions.empty() && place.dimensions.back().step == static_cast<int64_t>(place.width)) {
    place.width *= place.dimensions.back().count;
    place.dimensions.pop_back();
  }
  return place;
}

// Matrices of rows x columns, or rows of one matrix; all in elements.
Strided rows(int64_t width, int64_t offset, std::initializer_list<std::pair<int64_t, int64_t>> dimensions,
             int64_t columns) {
  Strided place{static_cast<uint64_t>(offset * width), {}, static_cast<uint64_t>(columns * width)};
  for (auto [count, step] : dimensions) place.dimensions.push_back({static_cast<uint64_t>(count), step * width});
  return simplified(std::move(place));
}

}  // namespace

void executeCall(Machine& machine, const Instruction& instruction, int64_t rank) {
  Expected<AnyCall> parsed = parseCall(instruction.call());
  // verifyPlan() has parsed it before.
  if (parsed.ok()) CallMachine(machine, instruction, rank).run(*parsed);
}

void CallMachine::run(const AnyCall& call) {
  std::visit([&](const auto& one) { (*this)(one); }, call);
}

uint64_t CallMachine::operation(std::initializer_list<std::string_view> without) const {
  Term term(instruction_.call().function());
  for (const Attribute& attribute : canonicalAttributes(instruction_.call())) {
    if (std::find(without.begin(), without.end(), attribute.name()) != without.end()) continue;
    term.add(attribute.name());
    attribute.has_real() ? term.addReal(attribute.real()) : term.add(static_cast<uint64_t>(attribute.integer()));
  }
  return term.hash();
}

CallMachine::Inputs CallMachine::inputs(uint64_t operation, std::span<const Part> reads) {
  Inputs inputs{operation, 0, {}};
  Term term("call");
  term.add(operation);
  machine_.collected_ = &inputs.of;
  for (const Part& part : reads) term.add(machine_.sequence(rank_, operand(part.operand), part.place));
  machine_.collected_ = nullptr;
  inputs.hash = term.hash();
  return inputs;
}

uint64_t CallMachine::result(const Inputs& inputs, uint64_t which) {
  const uint64_t value = Term("result").add(inputs.hash).add(which).hash();
  machine_.note(value, inputs.operation, inputs.of);
  return value;
}

void CallMachine::apply(std::span<const Part> reads, std::span<const Part> writes,
                        std::initializer_list<std::string_view> without) {
  const Inputs all = inputs(operation(without), reads);
  for (const Part& part : writes)
    machine_.writeValue(rank_, operand(part.operand), part.place, result(all, static_cast<uint64_t>(part.operand)));
}

void CallMachine::units(const AnyCall& call, int64_t count, std::initializer_list<int> shared,
                        std::initializer_list<std::string_view> counts) {
  const std::vector<OperandNeed> needs = operandsOf(call);
  for (int64_t unit = 0; unit < count && machine_.status().ok(); ++unit) {
    std::vector<Part> reads, writes;
    for (size_t i = 0; i < needs.size(); ++i) {
      const int index = static_cast<int>(i);
      const bool whole = std::find(shared.begin(), shared.end(), index) != shared.end();
      // One whose size no attribute says is as long as the operand.
      const uint64_t all = needs[i].bytes ? needs[i].bytes : operand(index).bytes();
      const uint64_t size = whole ? all : all / static_cast<uint64_t>(count);
      const Part part{index, dense(whole ? 0 : static_cast<uint64_t>(unit) * size, size)};
      if (needs[i].access != WRITE) reads.push_back(part);
      if (needs[i].access != READ) writes.push_back(part);
    }
    apply(reads, writes, counts);
  }
}

//===--- Products ---===//

void CallMachine::operator()(const GemmCall& c) {
  const int64_t width = static_cast<int64_t>(elementBytes(c.type));
  std::vector<Part> reads{{0, rows(width, 0, {{c.batch, c.strideA}, {c.rowsA(), c.lda}}, c.columnsA())},
                          {1, rows(width, 0, {{c.batch, c.strideB}, {c.rowsB(), c.ldb}}, c.columnsB())}};
  if (int i = operandIndex<"bias">(c); i >= 0) reads.push_back({i, rows(width, 0, {}, c.n)});
  if (int i = operandIndex<"gelu_input">(c); i >= 0) reads.push_back({i, rows(width, 0, {}, c.m * c.n)});
  std::vector<Part> writes{{operandIndex<"c">(c), rows(width, 0, {{c.batch, c.strideC}, {c.m, c.ldc}}, c.n)}};
  if (int i = operandIndex<"saved_gelu_input">(c); i >= 0) writes.push_back({i, rows(width, 0, {}, c.m * c.n)});
  if (int i = operandIndex<"sum">(c); i >= 0)
    writes.push_back({i, rows(width, 0, {}, c.epilogue == GemmEpilogue::kSumA ? c.m : c.n)});
  apply(reads, writes, {"lda", "ldb", "ldc", "stride_a", "stride_b", "stride_c"});
}

void CallMachine::operator()(const AttentionCall& c) {
  const int64_t width = static_cast<int64_t>(elementBytes(c.type));
  for (int64_t b = 0; b < c.b && machine_.status().ok(); ++b) {
    auto tokens = [&](int operand, int64_t count, int64_t row, int64_t columns) {
      return Part{operand, rows(width, b * count * row, {{count, row}}, columns)};
    };
    std::vector<Part> reads{tokens(0, c.s, c.queryRow, c.queryToken()), tokens(1, c.t, c.keyRow, c.keyToken()),
                            tokens(2, c.t, c.valueRow, c.valueToken())};
    const int64_t mask = c.maskH * c.s * c.t;
    if (int i = operandIndex<"mask">(c); i >= 0)
      reads.push_back({i, rows(sizeof(float), c.maskB > 1 ? b * mask : 0, {}, mask)});
    const Part writes[] = {
        tokens(operandIndex<"result">(c), c.s, c.resultRow, c.resultToken()),
        {operandIndex<"log_sum_exp">(c), rows(sizeof(float), b * c.h * c.s, {}, c.h * c.s)},
    };
    apply(reads, writes, {"b", "mask_b", "query_row", "key_row", "value_row", "result_row"});
  }
}

void CallMachine::operator()(const AttentionGradCall& c) {
  const int64_t width = static_cast<int64_t>(elementBytes(c.type));
  for (int64_t b = 0; b < c.b && machine_.status().ok(); ++b) {
    auto tokens = [&](int operand, int64_t count, int64_t row, int64_t columns) {
      return Part{operand, rows(width, b * count * row, {{count, row}}, columns)};
    };
    std::vector<Part> reads{tokens(operandIndex<"query">(c), c.s, c.queryRow, c.queryToken()),
                            tokens(operandIndex<"key">(c), c.t, c.keyRow, c.keyToken()),
                            tokens(operandIndex<"value">(c), c.t, c.valueRow, c.valueToken()),
                            tokens(operandIndex<"result">(c), c.s, c.resultRow, c.resultToken()),
                            {operandIndex<"log_sum_exp">(c), rows(sizeof(float), b * c.h * c.s, {}, c.h * c.s)},
                            tokens(operandIndex<"gradient">(c), c.s, c.gradientRow, c.resultToken())};
    const int64_t mask = c.maskH * c.s * c.t;
    if (int i = operandIndex<"mask">(c); i >= 0)
      reads.push_back({i, rows(sizeof(float), c.maskB > 1 ? b * mask : 0, {}, mask)});
    const Part writes[] = {
        tokens(operandIndex<"query_gradient">(c), c.s, c.queryGradientRow, c.queryToken()),
        tokens(operandIndex<"key_gradient">(c), c.t, c.keyGradientRow, c.keyToken()),
        tokens(operandIndex<"value_gradient">(c), c.t, c.valueGradientRow, c.valueToken()),
    };
    apply(reads, writes,
          {"b", "mask_b", "query_row", "key_row", "value_row", "result_row", "gradient_row", "query_gradient_row",
           "key_gradient_row", "value_gradient_row"});
  }
}

//===--- Windows, selections, sums ---===//

void CallMachine::operator()(const MaxPoolCall& c) {
  units(c, c.n, {}, {"n"});
}
void CallMachine::operator()(const MaxPoolIndicesCall& c) {
  units(c, c.n, {}, {"n"});
}
void CallMachine::operator()(const MaxPoolGradCall& c) {
  units(c, c.n, {}, {"n"});
}
void CallMachine::operator()(const ScatterAddCall& c) {
  if (c.count > kMostRows || c.rows > kMostRows)
    return units(c, c.outer, {kOperand<ScatterAddCall, "indices">}, {"outer"});
  const uint64_t width = elementBytes(c.type), entry = static_cast<uint64_t>(c.inner) * width;
  const uint64_t function = operation({"outer", "inner"});
  const Part indices[] = {{1, dense(0, static_cast<uint64_t>(c.count * c.indexBytes))}};
  const Inputs added = inputs(function, indices);
  for (int64_t i = 0; i < c.outer && machine_.status().ok(); ++i) {
    const Contents columns = columnsOf(0, static_cast<uint64_t>(i * c.count) * entry, c.count, c.inner, width);
    for (int64_t row = 0; row < c.rows && machine_.status().ok(); ++row) {
      Contents which;
      which.add({static_cast<uint64_t>(c.inner), result(added, 3), static_cast<uint64_t>(row), true});
      const Contents* const both[] = {&columns, &which};
      machine_.write(rank_, operand(2), static_cast<uint64_t>(i * c.rows + row) * entry,
                     Machine::toBytes(machine_.map("scatter_add", function, c.type, both), width));
    }
  }
}
void CallMachine::operator()(const ScatterCall& c) {
  if (c.indexOuter)
    units(c, c.outer, {}, {"outer", "index_outer"});
  else
    units(c, c.outer, {kOperand<ScatterCall, "indices">}, {"outer", "index_outer"});
}
void CallMachine::operator()(const TopKCall& c) {
  units(c, c.outer, {}, {"outer"});
}
void CallMachine::operator()(const CumSumCall& c) {
  units(c, c.outer, {}, {"outer"});
}

// Sums are formed in f32 and rounded to the destination's type, as a kernel would.
void CallMachine::operator()(const SumPartialsCall& c) {
  const uint64_t width = elementBytes(c.type);
  const Part partials[] = {{0, dense(0, static_cast<uint64_t>(c.p * c.c) * sizeof(float))}};
  Contents sums;
  sums.add({static_cast<uint64_t>(c.c), result(inputs(operation({"type"}), partials), 1), 0, false});
  machine_.write(rank_, operand(1), 0, Machine::toBytes(machine_.rounded(c.type, sums), width));
}

//===--- Moves ---===//

// A row of the result is a function of the data and one index, or an element of a column and one.
void CallMachine::operator()(const GatherCall& c) {
  const bool byRow = c.rows > kMostRows;
  if (byRow && c.indexInner)
    return c.indexOuter ? units(c, c.outer, {}, {"outer", "index_outer"})
                        : units(c, c.outer, {kOperand<GatherCall, "indices">}, {"outer", "index_outer"});
  const uint64_t indexWidth = static_cast<uint64_t>(c.indexBytes), width = static_cast<uint64_t>(c.elementBytes);
  const uint64_t entry = static_cast<uint64_t>(c.inner) * width;
  const uint64_t count = static_cast<uint64_t>(c.indexInner ? c.count * c.inner : c.count);
  for (uint64_t i = 0; i < static_cast<uint64_t>(c.outer) && machine_.status().ok(); ++i) {
    const uint64_t begin = i * static_cast<uint64_t>(c.rows) * entry, end = i * static_cast<uint64_t>(c.count) * entry;
    const Contents indices = machine_.toElements(
        machine_.read(rank_, operand(1), c.indexOuter ? i * count * indexWidth : 0, count * indexWidth), indexWidth);
    machine_.write(rank_, operand(2), end, byRow ? gatherRows(c, begin, indices) : gatherElements(c, begin, indices));
  }
}

// Each row is a value of its own.
Contents CallMachine::gatherRows(const GatherCall& c, uint64_t begin, const Contents& indices) {
  const uint64_t row = static_cast<uint64_t>(c.inner * c.elementBytes);
  const Part whole[] = {{0, dense(begin, static_cast<uint64_t>(c.rows) * row)}};
  const Inputs data = inputs(operation({"outer", "count", "index_outer"}), whole);
  Contents rows;
  for (const Run& run : indices.runs) {
    Inputs both = data;
    both.of.push_back(run.value);
    both.hash = Term("row").add(data.hash).add(run.value).add(run.splat ? run.index + 1 : 0).hash();
    const uint64_t value = result(both, 2);
    if (!run.splat) {
      rows.add({run.length * row, value, run.index * row, false});
      continue;
    }
    for (uint64_t i = 0; i < run.length && machine_.status().ok(); ++i) {
      machine_.work();
      rows.add({row, value, 0, false});
    }
  }
  return rows;
}

Contents CallMachine::gatherElements(const GatherCall& c, uint64_t begin, const Contents& indices) {
  const uint64_t inner = static_cast<uint64_t>(c.inner), width = static_cast<uint64_t>(c.elementBytes);
  const uint64_t function = operation({"outer", "count", "inner", "index_outer", "index_inner"});
  const Contents columns = columnsOf(0, begin, c.rows, c.inner, width);
  Contents rows, row;
  auto add = [&](const Run& index) {
    row.add(index);
    if (row.length() < inner) return;
    const Contents* const both[] = {&columns, &row};
    for (const Run& piece : machine_.map("gather", function, F32, both).runs) rows.add(piece);
    row.runs.clear();
  };
  for (const Run& run : indices.runs)
    for (uint64_t i = 0; i < run.length && machine_.status().ok();) {
      // Of its own, or one for all of a row.
      const uint64_t next = c.indexInner ? std::min(run.length - i, inner - row.length()) : 1;
      const Run index = run.part(i, next);
      add(c.indexInner ? index : Run{inner, index.value, index.index, true});
      i += next;
    }
  return Machine::toBytes(rows, width);
}

// Rows of `inner` elements as one row: an element stands for those of all rows.
Contents CallMachine::columnsOf(int index, uint64_t begin, int64_t count, int64_t inner, uint64_t width) {
  const uint64_t row = static_cast<uint64_t>(inner) * width;
  std::vector<Contents> rows;
  for (int64_t i = 0; i < count; ++i)
    rows.push_back(
        machine_.toElements(machine_.read(rank_, operand(index), begin + static_cast<uint64_t>(i) * row, row), width));
  std::vector<const Contents*> all;
  for (const Contents& one : rows) all.push_back(&one);
  return machine_.map("column", 0, F32, all);
}

void CallMachine::operator()(const CopyCall& c) {
  const Operand &source = operand(0), &destination = operand(1);
  const int64_t width = c.elementBytes;
  if (c.zero) (*this)(ZeroCall());
  std::vector<CopyDimension> dimensions = sheaf::plan::simplified(c.dimensions);
  // The innermost elements that lie side by side on both sides.
  int64_t chunk = 1;
  if (!dimensions.empty() && dimensions.back().source == 1 && dimensions.back().destination == 1) {
    chunk = dimensions.back().size;
    dimensions.pop_back();
  }
  const CopyDimension outermost = dimensions.empty() ? CopyDimension{1, 0, 0} : dimensions.front();
  if (!dimensions.empty()) dimensions.erase(dimensions.begin());
  int64_t pieces = 1;
  Strided from{0, {}, static_cast<uint64_t>(chunk * width)}, to = from;
  for (const CopyDimension& d : dimensions) {
    pieces = saturatingMultiply(pieces, d.size);
    from.dimensions.push_back({static_cast<uint64_t>(d.size), d.source * width});
    to.dimensions.push_back({static_cast<uint64_t>(d.size), d.destination * width});
  }
  for (int64_t i = 0; i < outermost.size && machine_.status().ok(); ++i) {
    from.offset = static_cast<uint64_t>((c.sourceOffset + i * outermost.source) * width);
    to.offset = static_cast<uint64_t>(i * outermost.destination * width);
    if (pieces > kMostOfEntry || saturatingMultiply(pieces, outermost.size) > kMostOfCopy) {
      const Part all[] = {{0, from}};
      machine_.writeValue(rank_, destination, to, result(inputs(Term("moved").hash(), all), 1));
      continue;
    }
    auto move = [&](auto& self, uint64_t begin, uint64_t end, size_t d) -> void {
      if (d == from.dimensions.size())
        return machine_.write(rank_, destination, end, machine_.read(rank_, source, begin, from.width));
      for (uint64_t k = 0; k < from.dimensions[d].count && machine_.status().ok(); ++k)
        self(self, begin + k * static_cast<uint64_t>(from.dimensions[d].step),
             end + k * static_cast<uint64_t>(to.dimensions[d].step), d + 1);
    };
    move(move, from.offset, to.offset, 0);
  }
}

void CallMachine::operator()(const ZeroCall&) {
  const Operand& destination = operand(instruction_.call().function() == "copy" ? 1 : 0);
  Contents zeros;
  zeros.add({destination.bytes(), zeroValue(), 0, true});
  machine_.write(rank_, destination, 0, zeros);
}

// An element of the random numbers is that of the global value. `width`: bytes of an element.
Contents CallMachine::random(const RandomShape& c, uint64_t width) const {
  Term numbers("random");
  numbers.add(operation({"count", "blocks", "pieces", "whole"}))
      .add(static_cast<uint64_t>(machine_.plan_.training().seed()));
  Contents random;
  const uint64_t bytes = static_cast<uint64_t>(c.run()) * width, hash = numbers.hash();
  const int64_t piece = static_cast<int64_t>(machine_.dataIndex(rank_));
  for (int64_t block = 0; block < c.blocks; ++block)
    random.add({bytes, hash, c.firstIndex(block, piece) * width, false});
  return random;
}

void CallMachine::operator()(const DropoutCall& c) {
  const uint64_t count = static_cast<uint64_t>(c.count), width = sizeof(float);
  const Contents random = this->random(c, 1);
  const Contents source = machine_.toElements(machine_.read(rank_, operand(0), 0, count * width), width);
  const Contents* const both[] = {&source, &random};
  machine_.write(rank_, operand(1), 0, Machine::toBytes(machine_.map("dropout", 0, F32, both), width));
}

void CallMachine::operator()(const RandomUniformCall& c) {
  machine_.write(rank_, operand(0), 0, random(c, sizeof(float)));
}

}  // namespace sheaf::plan
