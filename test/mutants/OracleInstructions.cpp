#include "test/mutants/OracleInstructions.h"

#include <algorithm>
#include <map>

namespace sheaf::mutants {

using plan::Instruction, plan::Operand;

namespace {

int64_t attributeOf(const plan::LibraryCall& call, const std::string& name, int64_t otherwise) {
  for (const plan::Attribute& a : call.attributes())
    if (a.name() == name) return a.integer();
  return otherwise;
}

}  // namespace

std::vector<const Operand*> operandsOf(const Instruction& instruction) {
  std::vector<const Operand*> list;
  for (const Operand& o : instruction.operands()) list.push_back(&o);
  return list;
}

std::string operationOf(Instruction instruction) {
  instruction.clear_stream();
  instruction.clear_label();
  if (instruction.has_collective()) instruction.mutable_collective()->clear_communicator();
  if (instruction.has_persist()) instruction.mutable_persist()->clear_communicator();
  for (Operand& o : *instruction.mutable_operands()) {
    o.clear_buffer();
    o.clear_offset();
    o.clear_shard_stride();
    o.clear_axis();
  }
  return instruction.SerializeAsString();
}

bool dependsOnStep(const Instruction& instruction) {
  return instruction.has_input() || instruction.has_scalars() || instruction.has_output() ||
         instruction.call().function() == "dropout";
}

const ByteRuns& runsOf(const Instruction& instruction, size_t index) {
  static std::map<std::pair<std::string, size_t>, ByteRuns> known;
  auto [entry, isNew] = known.try_emplace({instruction.SerializeAsString(), index});
  ByteRuns& runs = entry->second;
  if (!isNew) return runs;
  const plan::LibraryCall& call = instruction.call();
  auto get = [&](const std::string& name, int64_t otherwise = 0) { return attributeOf(call, name, otherwise); };
  const int64_t width = get("type", plan::F32) == plan::BF16 ? 2 : 4;
  auto add = [&](int64_t at, int64_t elements, int64_t bytes) {
    const auto begin = static_cast<uint64_t>(at * bytes), end = static_cast<uint64_t>((at + elements) * bytes);
    if (!runs.empty() && runs.back().second == begin)
      runs.back().second = end;
    else
      runs.emplace_back(begin, end);
  };
  std::vector<size_t> results;
  for (int i = 0; i < instruction.operands_size(); ++i)
    if (instruction.operands(i).access() == plan::WRITE) results.push_back(static_cast<size_t>(i));
  const size_t result = static_cast<size_t>(std::find(results.begin(), results.end(), index) - results.begin());
  if (call.function() == "copy" && result == 0 && !get("zero")) {
    std::vector<int64_t> starts{0};
    for (int64_t d = 0; d < get("rank"); ++d) {
      std::vector<int64_t> next;
      for (int64_t start : starts)
        for (int64_t i = 0; i < get("size" + std::to_string(d)); ++i)
          next.push_back(start + i * get("destination_stride" + std::to_string(d)));
      starts = std::move(next);
    }
    std::sort(starts.begin(), starts.end());
    for (int64_t start : starts) add(start, 1, get("element_bytes"));
  } else if (call.function() == "gemm" && result == 0) {
    const int64_t n = get("n"), ldc = get("ldc");
    // Rows of no whole number of vectors may be padded by up to a thirty-second; the padding belongs to the row.
    const bool padded = n * width % 16 != 0 && (ldc - n) * 32 <= n;
    for (int64_t b = 0; b < get("batch", 1); ++b)
      for (int64_t i = 0; i < get("m"); ++i) add(b * get("stride_c") + i * ldc, padded ? ldc : n, width);
  } else if (call.function() == "attention" && result == 0) {
    for (int64_t i = 0; i < get("b") * get("s"); ++i) add(i * get("result_row"), get("h") * get("e"), width);
  } else if (call.function() == "attention_grad" && result < 3) {
    const int64_t tokens = get("b") * get(result == 0 ? "s" : "t");
    const int64_t row = get(result == 0   ? "query_gradient_row"
                            : result == 1 ? "key_gradient_row"
                                          : "value_gradient_row");
    const int64_t token = get(result == 0 ? "h" : "g") * get(result == 2 ? "e" : "d");
    for (int64_t i = 0; i < tokens; ++i) add(i * row, token, width);
  }
  return runs;
}

bool meet(uint64_t begin, uint64_t end, uint64_t from, uint64_t to) {
  return begin < to && from < end;
}

std::string sharedPlaces(const Instruction& instruction) {
  std::string text;
  if (!instruction.has_kernel()) return text;
  const auto& list = instruction.operands();
  for (int i = 0; i < list.size(); ++i)
    for (int j = 0; j < i; ++j)
      if (list[i].buffer() == list[j].buffer() && list[i].offset() == list[j].offset() &&
          list[i].shard_stride() == list[j].shard_stride() && list[i].axis() == list[j].axis() &&
          list[i].access() != list[j].access())
        text += ", " + std::to_string(j) + " is " + std::to_string(i);
  return text;
}

}  // namespace sheaf::mutants
