#include "runtime/exec/Weights.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "runtime/base/Text.h"
#include "runtime/plan/Types.h"

namespace sheaf::exec {
namespace {

constexpr uint64_t kChunkElements = 1 << 20;

std::vector<uint64_t> rowMajorStrides(std::span<const int64_t> shape) {
  std::vector<uint64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * static_cast<uint64_t>(shape[i]);
  return strides;
}

// out[k] = in[sum of index_d * strides[d]] for the row-major index k of `shape`, k in [begin, end).
void gatherStrided(const std::byte* in, std::span<const int64_t> shape, std::span<const uint64_t> strides,
                   size_t elementBytes, uint64_t begin, uint64_t end, std::byte* out) {
  std::vector<uint64_t> index(shape.size());
  uint64_t rest = begin, at = 0;
  for (size_t d = shape.size(); d-- > 0; rest /= static_cast<uint64_t>(shape[d])) {
    index[d] = rest % static_cast<uint64_t>(shape[d]);
    at += index[d] * strides[d];
  }
  for (uint64_t k = begin; k < end; ++k, out += elementBytes) {
    std::memcpy(out, in + at * elementBytes, elementBytes);
    for (size_t d = shape.size(); d-- > 0;) {
      at += strides[d];
      if (++index[d] < static_cast<uint64_t>(shape[d])) break;
      at -= strides[d] * index[d];
      index[d] = 0;
    }
  }
}

// One parameter from values in the named layout.
Status loadNamed(const StateAccess& state, const plan::Parameter& parameter, const io::Tensor& tensor) {
  int bucket = static_cast<int>(parameter.bucket());
  plan::ElementType exact = state.elementType(bucket, exactSlot(state.plan().buckets(bucket)));
  io::DataType target = io::dataTypeOf(exact);
  uint64_t count = *plan::elementCount(plan::shapeOf(parameter));
  if (parameter.permutation_size() == 0 && tensor.type == target)
    return state.writeValues(bucket, parameter.offset(), exact, tensor.data);
  size_t sourceBytes = io::bytesOf(tensor.type), targetBytes = io::bytesOf(target);
  std::vector<std::byte> ordered(std::min(count, kChunkElements) * sourceBytes);
  std::vector<std::byte> converted(std::min(count, kChunkElements) * targetBytes);
  for (uint64_t begin = 0; begin < count; begin += kChunkElements) {
    uint64_t end = std::min(count, begin + kChunkElements);
    namedToPlan(parameter, tensor.data.data(), sourceBytes, begin, end, ordered.data());
    SHEAF_RETURN_IF_ERROR(io::convert(tensor.type, ordered.data(), target, converted.data(), end - begin));
    SHEAF_RETURN_IF_ERROR(state.writeValues(bucket, parameter.offset() + begin, exact,
                                            std::span(converted).first((end - begin) * targetBytes)));
  }
  return {};
}

Status checkReplacement(const plan::Parameter& parameter, const io::Tensor& tensor) {
  std::vector<int64_t> shape = namedShape(parameter);
  if (tensor.shape != shape)
    return Status::error(cat("--weights: tensor '", parameter.name(), "' has shape ", shapeText(tensor.shape),
                             ", the model's has ", shapeText(shape)));
  io::DataType target = io::dataTypeOf(parameter.type());
  if (!io::convertible(tensor.type, target))
    return Status::error(cat("--weights: tensor '", parameter.name(), "' is ", io::nameOf(tensor.type),
                             ", the model's is ", io::nameOf(target)));
  return {};
}

}  // namespace

std::vector<int64_t> namedShape(const plan::Parameter& parameter) {
  std::vector<int64_t> shape(parameter.shape().begin(), parameter.shape().end());
  for (int i = 0; i < parameter.permutation_size(); ++i)
    shape[static_cast<size_t>(parameter.permutation(i))] = parameter.shape(i);
  return shape;
}

void namedToPlan(const plan::Parameter& parameter, const std::byte* named, size_t elementBytes, uint64_t begin,
                 uint64_t end, std::byte* out) {
  if (parameter.permutation_size() == 0) {
    std::memcpy(out, named + begin * elementBytes, (end - begin) * elementBytes);
    return;
  }
  std::vector<uint64_t> all = rowMajorStrides(namedShape(parameter)), strides;
  for (int64_t dimension : parameter.permutation()) strides.push_back(all[static_cast<size_t>(dimension)]);
  gatherStrided(named, plan::shapeOf(parameter), strides, elementBytes, begin, end, out);
}

void planToNamed(const plan::Parameter& parameter, const std::byte* values, size_t elementBytes, std::byte* out) {
  uint64_t count = *plan::elementCount(plan::shapeOf(parameter));
  std::vector<uint64_t> all = rowMajorStrides(plan::shapeOf(parameter)), strides(all);
  for (int i = 0; i < parameter.permutation_size(); ++i)
    strides[static_cast<size_t>(parameter.permutation(i))] = all[static_cast<size_t>(i)];
  gatherStrided(values, namedShape(parameter), strides, elementBytes, 0, count, out);
}

Status clearPadding(const StateAccess& state, bool states) {
  const plan::Plan& plan = state.plan();
  std::vector<std::vector<const plan::Parameter*>> members(static_cast<size_t>(plan.buckets_size()));
  for (const plan::Parameter& parameter : plan.parameters()) members[parameter.bucket()].push_back(&parameter);
  for (int i = 0; i < plan.buckets_size(); ++i) {
    const plan::Bucket& bucket = plan.buckets(i);
    auto& list = members[static_cast<size_t>(i)];
    std::sort(list.begin(), list.end(), [](auto* a, auto* b) { return a->offset() < b->offset(); });
    uint64_t at = 0;
    for (const plan::Parameter* parameter : list) {
      SHEAF_RETURN_IF_ERROR(state.writeZeros(i, kParameters, at, parameter->offset()));
      at = parameter->offset() + *plan::elementCount(plan::shapeOf(*parameter));
    }
    SHEAF_RETURN_IF_ERROR(state.writeZeros(i, kParameters, at, bucket.elements()));
    for (int s = 0; states && s < bucket.states_size(); ++s)
      SHEAF_RETURN_IF_ERROR(state.writeZeros(i, s, 0, bucket.elements()));
  }
  return {};
}

Status loadConstants(const StateAccess& state, WeightFiles& files) {
  for (const plan::Constant& constant : state.plan().constants()) {
    Expected<std::span<const std::byte>> bytes =
        files.bytes(constant.source(), [](uint64_t, uint64_t) { return true; });
    if (!bytes.ok()) return bytes.status();
    SHEAF_RETURN_IF_ERROR(state.writeBuffer(constant.buffer(), *bytes));
  }
  return {};
}

Status loadWeights(const StateAccess& state, WeightFiles& files, const io::Safetensors* replacement,
                   const std::function<void(const std::string&)>& note) {
  const plan::Plan& plan = state.plan();
  size_t replaced = 0;
  std::vector<std::string> missing;
  for (const plan::Parameter& parameter : plan.parameters()) {
    const io::Tensor* tensor = replacement ? replacement->find(parameter.name()) : nullptr;
    if (tensor) {
      ++replaced;
      SHEAF_RETURN_IF_ERROR(checkReplacement(parameter, *tensor));
    } else if (!parameter.has_source()) {
      missing.push_back(parameter.name());
    }
  }
  if (!missing.empty())
    return Status::error(cat("no initial values for ", listText(missing, 5),
                             replacement ? ": they are not in the file of --weights"
                                         : "; make some with `sheaf init` and pass --weights W.safetensors"));
  if (replacement && replaced == 0 && plan.parameters_size() > 0)
    return Status::error(
        cat("--weights: the file has none of the model's parameters, such as '", plan.parameters(0).name(), "'"));
  if (replacement && replaced < static_cast<size_t>(plan.parameters_size()))
    note(cat("--weights replaces ", replaced, " of ", plan.parameters_size(), " parameters"));
  if (replacement && replacement->tensors().size() > replaced)
    note(cat("--weights: ", replacement->tensors().size() - replaced, " tensors of the file are not the model's"));

  SHEAF_RETURN_IF_ERROR(loadConstants(state, files));
  SHEAF_RETURN_IF_ERROR(clearPadding(state, true));
  for (const plan::Parameter& parameter : plan.parameters()) {
    if (const io::Tensor* tensor = replacement ? replacement->find(parameter.name()) : nullptr) {
      SHEAF_RETURN_IF_ERROR(loadNamed(state, parameter, *tensor));
      replacement->release(tensor->data);
      continue;
    }
    const int bucket = static_cast<int>(parameter.bucket());
    const uint64_t size = plan::elementBytes(plan::sourceType(parameter));
    Expected<std::span<const std::byte>> bytes = files.bytes(parameter.source(), [&](uint64_t begin, uint64_t end) {
      return state.holds(bucket, parameter.offset() + begin / size, parameter.offset() + end / size);
    });
    if (!bytes.ok()) return Status::error(cat("parameter '", parameter.name(), "': ", bytes.status().message()));
    SHEAF_RETURN_IF_ERROR(state.writeValues(bucket, parameter.offset(), plan::sourceType(parameter), *bytes));
    files.release(parameter.source(), *bytes);
  }
  return {};
}

std::vector<io::SafetensorsWriter::Entry> weightEntries(const StateAccess& state) {
  std::vector<io::SafetensorsWriter::Entry> entries;
  for (const plan::Parameter& parameter : state.plan().parameters()) {
    const plan::Bucket& bucket = state.plan().buckets(static_cast<int>(parameter.bucket()));
    entries.push_back(
        {parameter.name(), io::dataTypeOf(plan::slotType(bucket, exactSlot(bucket))), namedShape(parameter)});
  }
  return entries;
}

Status saveWeights(const StateAccess& state, const std::string& path) {
  const plan::Plan& plan = state.plan();
  const std::vector<io::SafetensorsWriter::Entry> entries = weightEntries(state);
  std::optional<io::SafetensorsWriter> writer;
  if (state.first()) {
    Expected<io::SafetensorsWriter> made = io::SafetensorsWriter::create(path, entries, {{"format", "pt"}});
    if (!made.ok()) return made.status();
    writer = std::move(*made);
  }
  std::vector<std::byte> values, named;
  for (const plan::Parameter& parameter : plan.parameters()) {
    int bucket = static_cast<int>(parameter.bucket()), slot = exactSlot(plan.buckets(bucket));
    uint64_t size = state.elementBytes(bucket, slot), count = *plan::elementCount(plan::shapeOf(parameter));
    // A permuted parameter is read into memory whole; the others pass through in pieces.
    uint64_t piece = parameter.permutation_size() ? count : std::min(count, kChunkElements);
    for (uint64_t begin = 0; begin < count; begin += piece) {
      uint64_t now = std::min(piece, count - begin);
      if (writer) values.resize(now * size);
      SHEAF_RETURN_IF_ERROR(state.collect(bucket, slot, parameter.offset() + begin, now, values));
      if (!writer) continue;
      if (parameter.permutation_size()) {
        named.resize(values.size());
        planToNamed(parameter, values.data(), size, named.data());
        SHEAF_RETURN_IF_ERROR(writer->write(named));
      } else {
        SHEAF_RETURN_IF_ERROR(writer->write(values));
      }
    }
  }
  return writer ? writer->commit() : Status();
}

}  // namespace sheaf::exec
