#include "runtime/exec/CopiedWeights.h"

#include "runtime/base/Text.h"
#include "runtime/exec/Weights.h"
#include "runtime/plan/Types.h"

namespace sheaf::exec {

Expected<CopiedWeights> CopiedWeights::find(const plan::Plan& plan, WeightFiles& files,
                                            const io::Safetensors* replacement, comm::ProcessGroup* processes,
                                            const std::function<void(const std::string&)>& note) {
  CopiedWeights found(files, replacement);
  std::string have;  // for each tensor
  std::vector<std::string> missing;
  Status why;
  for (const plan::Parameter& tensor : plan.copied()) {
    if (Expected<const io::Tensor*> other = found.replaced(tensor); !other.ok()) return other.status();
    Status status = found.available(tensor);
    have += status.ok() ? '1' : '0';
    if (!status.ok()) missing.push_back(tensor.name());
    if (!status.ok() && why.ok()) why = std::move(status);
  }
  if (!missing.empty()) note(cat("the saved weights lack ", listText(missing, 5), ": ", why.message()));
  if (processes && plan.copied_size() > 0) {
    Expected<std::vector<std::string>> all = processes->allGather(have, "the tensors that are copied");
    if (!all.ok()) return all.status();
    have = all->front();
  }
  for (int i = 0; i < plan.copied_size(); ++i)
    if (static_cast<size_t>(i) < have.size() && have[static_cast<size_t>(i)] == '1')
      found.tensors_.push_back(&plan.copied(i));
  return found;
}

std::vector<io::SafetensorsWriter::Entry> CopiedWeights::entries() const {
  std::vector<io::SafetensorsWriter::Entry> entries;
  for (const plan::Parameter* tensor : tensors_)
    entries.push_back({tensor->name(), io::dataTypeOf(tensor->type()), namedShape(*tensor)});
  return entries;
}

Expected<const io::Tensor*> CopiedWeights::replaced(const plan::Parameter& tensor) const {
  if (!replacement_ || tensor.constant()) return static_cast<const io::Tensor*>(nullptr);
  Expected<const io::Tensor*> found = tensorOf(tensor, *replacement_);
  if (!found.ok()) return Status::error(cat("--weights: ", found.status().message()));
  if (*found) SHEAF_RETURN_IF_ERROR(checkReplacement(tensor, **found));
  return found;
}

Status CopiedWeights::available(const plan::Parameter& tensor) const {
  if (*plan::elementCount(plan::shapeOf(tensor)) == 0) return {};
  if (Expected<const io::Tensor*> other = replaced(tensor); !other.ok() || *other) return other.status();
  if (!tensor.has_source()) return Status::error("the model has no values of it");
  return files_->bytes(tensor.source(), [](uint64_t, uint64_t) { return false; }).status();
}

Status CopiedWeights::read(const plan::Parameter& tensor,
                           const std::function<Status(std::span<const std::byte>)>& visit) const {
  const uint64_t count = *plan::elementCount(plan::shapeOf(tensor));
  if (count == 0) return {};
  const io::DataType type = io::dataTypeOf(tensor.type());
  std::vector<std::byte> values(count * io::bytesOf(type));
  Expected<const io::Tensor*> other = replaced(tensor);
  if (!other.ok()) return other.status();
  if (*other) {
    if ((*other)->type == type) return visit((*other)->data);
    SHEAF_RETURN_IF_ERROR(io::convert((*other)->type, (*other)->data.data(), type, values.data(), count));
    return visit(values);
  }
  Expected<std::span<const std::byte>> bytes = files_->bytes(tensor.source(), [](uint64_t, uint64_t) { return true; });
  if (!bytes.ok()) return Status::error(cat("'", tensor.name(), "': ", bytes.status().message()));
  if (tensor.permutation_size() == 0) return visit(*bytes);
  planToNamed(tensor, bytes->data(), io::bytesOf(type), values.data());
  return visit(values);
}

}  // namespace sheaf::exec
