#include "runtime/exec/WeightShards.h"

#include <algorithm>
#include <span>
#include <vector>

#include "runtime/base/Text.h"
#include "runtime/exec/Agreement.h"
#include "runtime/exec/Weights.h"
#include "runtime/io/SafetensorsShards.h"
#include "runtime/plan/SavedParts.h"
#include "runtime/plan/Types.h"

namespace sheaf::exec {
namespace {

constexpr uint64_t kChunkElements = 1 << 22;

// A range of a tensor's elements in row-major order that is a box: `size` elements of each dimension from `first` on.
struct Box {
  std::vector<int64_t> first, size;
  uint64_t begin, end;
};

// The elements [begin, end) of a tensor as boxes, as few as there are, in order.
std::vector<Box> boxesOf(std::span<const int64_t> shape, uint64_t begin, uint64_t end) {
  const size_t dimensions = shape.size();
  std::vector<uint64_t> inner(dimensions, 1);  // elements of one step along a dimension
  for (size_t d = dimensions; d-- > 1;) inner[d - 1] = inner[d] * static_cast<uint64_t>(shape[d]);
  std::vector<Box> boxes;
  while (begin < end) {
    size_t along = 0;
    while (along + 1 < dimensions && (begin % inner[along] != 0 || end - begin < inner[along])) ++along;
    Box box{std::vector<int64_t>(dimensions), std::vector<int64_t>(dimensions, 1), begin, begin + 1};
    uint64_t rest = begin;
    for (size_t d = 0; d < dimensions; rest %= inner[d], ++d) box.first[d] = static_cast<int64_t>(rest / inner[d]);
    for (size_t d = along + 1; d < dimensions; ++d) box.size[d] = shape[d];
    if (dimensions > 0) {
      box.size[along] = std::min(shape[along] - box.first[along], static_cast<int64_t>((end - begin) / inner[along]));
      box.end = begin + static_cast<uint64_t>(box.size[along]) * inner[along];
    }
    begin = box.end;
    boxes.push_back(std::move(box));
  }
  return boxes;
}

// Process 0 makes the files and tells the others their random name.
Expected<io::ShardWriter> openShards(const StateAccess& state, const CopiedWeights& copied, const std::string& index,
                                     uint64_t shardBytes) {
  const io::ShardWriter::Entries entries = weightEntries(state, copied);
  const std::string what = "the files of whole weights";
  if (!state.first()) {
    Expected<std::string> random = shareName(state.processes(), "", what);
    return random.ok() ? io::ShardWriter::join(index, entries, shardBytes, *random) : random.status();
  }
  Expected<io::ShardWriter> writer = io::ShardWriter::make(index, entries, shardBytes);
  if (writer.ok()) SHEAF_RETURN_IF_ERROR(shareName(state.processes(), writer->random(), what).status());
  return writer;
}

Status barrier(const StateAccess& state, const char* what) {
  return state.processes() ? state.processes()->barrier(what) : Status();
}

}  // namespace

Status forEachNamedRun(const plan::Parameter& parameter, uint64_t begin, std::span<const std::byte> values,
                       uint64_t elementBytes,
                       const std::function<Status(uint64_t place, std::span<const std::byte> elements)>& visit) {
  if (parameter.permutation_size() == 0) return visit(begin, values);
  const std::vector<int64_t> named = namedShape(parameter);
  std::vector<std::byte> ordered;
  for (const Box& box : boxesOf(plan::shapeOf(parameter), begin, begin + values.size() / elementBytes)) {
    // The box as a parameter of its own gives its elements in the named order.
    plan::Parameter part;
    *part.mutable_permutation() = parameter.permutation();
    std::vector<int64_t> first(named.size());
    for (int i = 0; i < parameter.shape_size(); ++i) {
      part.add_shape(box.size[static_cast<size_t>(i)]);
      first[static_cast<size_t>(parameter.permutation(i))] = box.first[static_cast<size_t>(i)];
    }
    const std::vector<int64_t> size = namedShape(part);
    ordered.resize((box.end - box.begin) * elementBytes);
    planToNamed(part, values.data() + (box.begin - begin) * elementBytes, elementBytes, ordered.data());
    // Elements that lie side by side in the file: of the last dimensions that the box has whole, and of the one before.
    size_t outer = named.size();
    uint64_t run = 1;
    do {
      --outer;
      run *= static_cast<uint64_t>(size[outer]);
    } while (outer > 0 && size[outer] == named[outer]);
    std::vector<int64_t> index(outer);
    for (uint64_t at = 0; at < ordered.size(); at += run * elementBytes) {
      uint64_t place = 0;
      for (size_t d = 0; d < named.size(); ++d)
        place = place * static_cast<uint64_t>(named[d]) + static_cast<uint64_t>(first[d] + (d < outer ? index[d] : 0));
      SHEAF_RETURN_IF_ERROR(visit(place, std::span(ordered).subspan(at, run * elementBytes)));
      for (size_t d = outer; d-- > 0;) {
        if (++index[d] < size[d]) break;
        index[d] = 0;
      }
    }
  }
  return {};
}

Status saveWeightShards(const StateAccess& state, const CopiedWeights& copied, const std::string& index,
                        uint64_t shardBytes) {
  const plan::Plan& plan = state.plan();
  Expected<io::ShardWriter> writer = openShards(state, copied, index, shardBytes);
  if (!writer.ok()) return writer.status();
  // Tensor after tensor, so that files are written one after the other.
  struct Piece {
    plan::SavedPart part;
    int64_t rank;
  };
  std::vector<Piece> pieces;
  for (int64_t rank = state.firstRank(); rank < state.firstRank() + state.localRanks(); ++rank)
    for (const plan::SavedPart& part : plan::savedParts(plan, rank))
      if (part.slot == exactSlot(plan.buckets(static_cast<int>(plan.parameters(part.parameter).bucket()))))
        pieces.push_back({part, rank});
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const Piece& a, const Piece& b) { return a.part.parameter < b.part.parameter; });
  std::vector<std::byte> values;
  for (const auto& [part, rank] : pieces) {
    const plan::Parameter& parameter = plan.parameters(part.parameter);
    const int bucket = static_cast<int>(parameter.bucket());
    const uint64_t size = state.elementBytes(bucket, part.slot);
    for (uint64_t begin = part.begin; begin < part.end; begin += kChunkElements) {
      values.resize(std::min(part.end - begin, kChunkElements) * size);
      SHEAF_RETURN_IF_ERROR(state.readOf(rank, bucket, part.slot, parameter.offset() + begin, values));
      SHEAF_RETURN_IF_ERROR(
          forEachNamedRun(parameter, begin, values, size, [&](uint64_t place, std::span<const std::byte> elements) {
            return writer->write(static_cast<size_t>(part.parameter), place * size, elements);
          }));
    }
  }
  for (size_t i = 0; state.first() && i < copied.tensors().size(); ++i)
    SHEAF_RETURN_IF_ERROR(copied.read(*copied.tensors()[i], [&](std::span<const std::byte> bytes) {
      return writer->write(static_cast<size_t>(plan.parameters_size()) + i, 0, bytes);
    }));
  SHEAF_RETURN_IF_ERROR(writer->sync());
  SHEAF_RETURN_IF_ERROR(barrier(state, "whole weights"));
  if (state.first()) SHEAF_RETURN_IF_ERROR(writer->commit(lockLimit(state.processes())));
  return barrier(state, "the index of whole weights");
}

}  // namespace sheaf::exec
