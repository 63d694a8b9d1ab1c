#include "runtime/exec/Weights.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>

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

Expected<const io::Tensor*> tensorOf(const plan::Parameter& parameter, const io::Safetensors& file) {
  const io::Tensor* found = file.find(parameter.name());
  const std::string* name = &parameter.name();
  for (const std::string& alias : parameter.aliases()) {
    const io::Tensor* other = file.find(alias);
    if (!other) continue;
    if (!found) {
      found = other;
      name = &alias;
    } else if (other->type != found->type || other->shape != found->shape ||
               !std::equal(other->data.begin(), other->data.end(), found->data.begin(), found->data.end())) {
      return Status::error(cat("the tensors '", *name, "' and '", alias, "' differ, and the model has one parameter ",
                               "for both: export it without the tie, or remove one from the file"));
    }
  }
  return found;
}

Status loadWeights(const StateAccess& state, WeightFiles& files, const std::optional<Replacement>& replacement,
                   const std::function<void(const std::string&)>& note) {
  const plan::Plan& plan = state.plan();
  std::vector<const io::Tensor*> tensors;  // by parameter; null: its own source
  std::set<std::string> known;             // names of parameters
  std::vector<std::string> missing, kept;
  for (const plan::Parameter& parameter : plan.parameters()) {
    known.insert(parameter.name());
    known.insert(parameter.aliases().begin(), parameter.aliases().end());
    tensors.push_back(nullptr);
    if (replacement) {
      Expected<const io::Tensor*> tensor = tensorOf(parameter, replacement->file);
      if (!tensor.ok()) return Status::error(cat("--weights: ", tensor.status().message()));
      tensors.back() = *tensor;
    }
    if (tensors.back()) {
      SHEAF_RETURN_IF_ERROR(checkReplacement(parameter, *tensors.back()));
      continue;
    }
    (parameter.has_source() ? kept : missing).push_back(parameter.name());
  }
  for (const plan::Parameter& tensor : plan.copied()) {
    known.insert(tensor.name());
    known.insert(tensor.aliases().begin(), tensor.aliases().end());
    const io::Tensor* other = replacement && tensor.constant() ? replacement->file.find(tensor.name()) : nullptr;
    if (!other || !tensor.has_source()) continue;
    Expected<std::span<const std::byte>> bytes = files.bytes(tensor.source(), [](uint64_t, uint64_t) { return true; });
    if (!bytes.ok() || !std::equal(bytes->begin(), bytes->end(), other->data.begin(), other->data.end()))
      note(cat("--weights: '", tensor.name(), "' of the file is not taken: it is a constant of the step, which keeps ",
               "the model's values"));
  }
  std::vector<std::string> unused;  // tensors of the file
  if (replacement)
    for (const auto& [name, tensor] : replacement->file.tensors())
      if (!known.contains(name)) unused.push_back(name);
  const std::string others =
      unused.empty() ? "" : cat("; the file has ", listText(unused, 5), ", which the model does not have");
  if (!missing.empty())
    return Status::error(cat("no initial values for ", listText(missing, 5),
                             replacement ? cat(": they are not in the file of --weights", others)
                                         : "; make some with `sheaf init` and pass --weights W.safetensors"));
  if (replacement && kept.size() == tensors.size() && !tensors.empty())
    return Status::error(cat("--weights: the file has none of the model's parameters, such as '",
                             plan.parameters(0).name(), "'", others));
  if (replacement && !kept.empty() && !replacement->partial)
    return Status::error(cat("--weights: the file lacks ", kept.size(), " of the model's ", tensors.size(),
                             " parameters: ", listText(kept, 5), others,
                             ". With --weights-partial these parameters keep the plan's initial values"));
  if (replacement && !kept.empty())
    note(cat("--weights replaces ", tensors.size() - kept.size(), " of ", tensors.size(), " parameters; not ",
             listText(kept, 5)));
  if (!unused.empty())
    note(cat("--weights: ", unused.size(), unused.size() == 1 ? " tensor" : " tensors", " of the file ",
             unused.size() == 1 ? "is" : "are", " not the model's: ", listText(unused, 5)));

  SHEAF_RETURN_IF_ERROR(loadConstants(state, files));
  SHEAF_RETURN_IF_ERROR(clearPadding(state, true));
  for (int i = 0; i < plan.parameters_size(); ++i) {
    const plan::Parameter& parameter = plan.parameters(i);
    if (const io::Tensor* tensor = tensors[static_cast<size_t>(i)]) {
      SHEAF_RETURN_IF_ERROR(loadNamed(state, parameter, *tensor));
      replacement->file.release(tensor->data);
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

std::vector<io::SafetensorsWriter::Entry> weightEntries(const StateAccess& state, const CopiedWeights& copied) {
  std::vector<io::SafetensorsWriter::Entry> entries;
  for (const plan::Parameter& parameter : state.plan().parameters()) {
    const plan::Bucket& bucket = state.plan().buckets(static_cast<int>(parameter.bucket()));
    entries.push_back(
        {parameter.name(), io::dataTypeOf(plan::slotType(bucket, exactSlot(bucket))), namedShape(parameter)});
  }
  const std::vector<io::SafetensorsWriter::Entry> others = copied.entries();
  entries.insert(entries.end(), others.begin(), others.end());
  return entries;
}

Status saveWeights(const StateAccess& state, const CopiedWeights& copied, const std::string& path) {
  const plan::Plan& plan = state.plan();
  const std::vector<io::SafetensorsWriter::Entry> entries = weightEntries(state, copied);
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
  if (!writer) return {};
  for (const plan::Parameter* tensor : copied.tensors())
    SHEAF_RETURN_IF_ERROR(copied.read(*tensor, [&](std::span<const std::byte> bytes) { return writer->write(bytes); }));
  return writer->commit();
}

}  // namespace sheaf::exec
