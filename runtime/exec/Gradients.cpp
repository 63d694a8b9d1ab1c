#include "runtime/exec/Gradients.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/Text.h"
#include "runtime/exec/Weights.h"
#include "runtime/io/Safetensors.h"
#include "runtime/plan/Library.h"
#include "runtime/plan/Types.h"

namespace sheaf::exec {

namespace {
// Elements per message between processes.
constexpr uint64_t kMessageElements = 1 << 20;
}  // namespace

// Of each bucket, whether its update multiplies the gradient by the first of the scalars that follow from the norm.
// That of running statistics does not.
static std::vector<bool> followsNorm(const plan::Plan& plan) {
  std::vector<bool> follows(static_cast<size_t>(plan.buckets_size()));
  const plan::Operand* scalars = nullptr;
  for (const plan::Instruction& instruction : plan.body()) {
    if (instruction.call().function() == plan::Schema<plan::GradientNormCall>::kName)
      scalars = &instruction.operands(plan::kOperand<plan::GradientNormCall, "scalars">);
    if (!scalars || instruction.updates_bucket() == 0) continue;
    for (const plan::Operand& operand : instruction.operands())
      if (operand.buffer() == scalars->buffer() && operand.offset() == scalars->offset())
        follows[instruction.updates_bucket() - 1] = true;
  }
  return follows;
}

GradientCapture::GradientCapture(const plan::Plan& plan, int64_t firstRank, int64_t localRanks, double lossScale)
    : plan_(plan),
      firstRank_(firstRank),
      localRanks_(localRanks),
      factors_(static_cast<size_t>(plan.buckets_size()), 1.0f),
      values_(static_cast<size_t>(plan.buckets_size())),
      seen_(static_cast<size_t>(plan.buckets_size())),
      parts_(static_cast<size_t>(plan.buckets_size()), 1) {
  if (lossScale == 1) return;
  const std::vector<bool> scaled = followsNorm(plan);
  for (size_t bucket = 0; bucket < scaled.size(); ++bucket)
    if (scaled[bucket]) factors_[bucket] = static_cast<float>(1 / lossScale);
}

void GradientCapture::add(int64_t rank, uint32_t bucket, std::span<const std::byte> gradient) {
  std::lock_guard lock(mutex_);
  plan::ElementType type = plan::gradientType(plan_.buckets(static_cast<int>(bucket)));
  uint64_t elements = plan_.buckets(static_cast<int>(bucket)).elements();
  uint64_t given = gradient.size() / plan::elementBytes(type);
  const uint64_t parts = elements / given;
  if (isCopy(rank, parts)) return;  // one rank's suffices
  std::vector<float>& values = values_[bucket];
  values.resize(elements);
  float* to = values.data() + plan::partOf(plan_, rank, parts) * given;
  // Every float type converts to f32.
  (void)io::convert(io::dataTypeOf(type), gradient.data(), io::DataType::F32, reinterpret_cast<std::byte*>(to), given);
  if (const float factor = factors_[bucket]; factor != 1)
    for (uint64_t i = 0; i < given; ++i) to[i] *= factor;
  seen_[bucket] += given;
  parts_[bucket] = parts;
}

// Whether a rank before it on this process has the same part.
bool GradientCapture::isCopy(int64_t rank, uint64_t parts) const {
  for (int64_t other = firstRank_; other < rank; ++other)
    if (plan::partOf(plan_, other, parts) == plan::partOf(plan_, rank, parts)) return true;
  return false;
}

Status GradientCapture::gather(comm::ProcessGroup& processes) {
  for (size_t bucket = 0; bucket < values_.size(); ++bucket) {
    if (seen_[bucket] == 0) continue;  // not captured on any process
    std::vector<float>& values = values_[bucket];
    const uint64_t parts = parts_[bucket], part = values.size() / parts;
    // The ranks of a process at their number within it, one after the other: each has one part of the same size.
    for (int64_t local = 0; local < localRanks_ && parts > 1; ++local) {
      auto of = [&](size_t process) {
        return values.data() + plan::partOf(plan_, static_cast<int64_t>(process) * localRanks_ + local, parts) * part;
      };
      for (uint64_t at = 0; at < part; at += kMessageElements) {
        const uint64_t count = std::min(kMessageElements, part - at);
        const float* mine = of(static_cast<size_t>(processes.rank())) + at;
        std::string message(reinterpret_cast<const char*>(mine), count * sizeof(float));
        Expected<std::vector<std::string>> all = processes.gather(message, "gradients");
        if (!all.ok()) return all.status();
        for (size_t process = 0; process < all->size(); ++process) {
          if ((*all)[process].size() != message.size())
            return Status::error("gradients: the processes captured gradients of different sizes");
          std::memcpy(of(process) + at, (*all)[process].data(), message.size());
        }
      }
    }
    seen_[bucket] = values.size();
  }
  return {};
}

Status GradientCapture::save(const std::string& path) const {
  std::vector<io::SafetensorsWriter::Entry> entries;
  for (const plan::Parameter& parameter : plan_.parameters()) {
    if (!parameter.trainable()) continue;
    const plan::Bucket& bucket = plan_.buckets(static_cast<int>(parameter.bucket()));
    if (seen_[parameter.bucket()] != bucket.elements())
      return Status::error(cat("--dump-gradients: the plan has no update of bucket '", bucket.name(), "' to read '",
                               parameter.name(), "' from"));
    entries.push_back({parameter.name(), io::DataType::F32, namedShape(parameter)});
  }
  Expected<io::SafetensorsWriter> writer = io::SafetensorsWriter::create(path, entries);
  if (!writer.ok()) return writer.status();
  std::vector<std::byte> named;
  for (const plan::Parameter& parameter : plan_.parameters()) {
    if (!parameter.trainable()) continue;
    const float* values = values_[parameter.bucket()].data() + parameter.offset();
    named.resize(*plan::elementCount(plan::shapeOf(parameter)) * sizeof(float));
    planToNamed(parameter, reinterpret_cast<const std::byte*>(values), sizeof(float), named.data());
    SHEAF_RETURN_IF_ERROR(writer->write(named));
  }
  return writer->commit();
}

}  // namespace sheaf::exec
