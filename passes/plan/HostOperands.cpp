// Copies to host memory what launches on the host read of device buffers, and back what they write.
#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <vector>

#include "passes/plan/Edits.h"
#include "passes/plan/Finish.h"
#include "passes/plan/Transfers.h"
#include "runtime/base/Text.h"

namespace sheaf::plan_ir {
namespace {

// The work on one list of instructions.
class OperandCopier {
 public:
  OperandCopier(plan::Plan& plan, plan::InstructionList& list, NewBuffers& added)
      : plan_(plan), list_(list), added_(added) {}

  void run() {
    std::vector<OpenList::Place> places;
    for (OpenList::Place at = list_.begin(); at != list_.end(); ++at) places.push_back(at);
    for (OpenList::Place at : places)
      if (executorOf(**at) == plan::Buffer::HOST)
        copyOperands(at);
      else
        for (const plan::Operand& operand : (*at)->operands())
          if (operand.access() != plan::READ) writer_[operand.buffer()] = at;
  }

 private:
  using Operands = std::vector<plan::Operand>;

  void copyOperands(OpenList::Place launch) {
    std::vector<uint32_t> onDevice;
    for (const plan::Operand& operand : (*launch)->operands())
      if (plan_.buffers(static_cast<int>(operand.buffer())).space() == plan::Buffer::DEVICE &&
          std::find(onDevice.begin(), onDevice.end(), operand.buffer()) == onDevice.end())
        onDevice.push_back(operand.buffer());
    for (uint32_t buffer : onDevice) {
      Operands inputs, outputs;
      for (const plan::Operand& operand : (*launch)->operands()) {
        if (operand.buffer() != buffer) continue;
        if (operand.access() != plan::WRITE) inputs.push_back(operand);
        if (operand.access() != plan::READ) outputs.push_back(operand);
      }
      inputs = joined(std::move(inputs));
      const uint32_t image = outputs.empty() ? sharedImage(launch, buffer, inputs) : newImage(launch, buffer, inputs);
      for (plan::Operand& operand : *(*launch)->mutable_operands())
        if (operand.buffer() == buffer) operand.set_buffer(image);
      const OpenList::Place next = std::next(launch);
      for (const plan::Operand& operand : outputs)
        writer_[buffer] = list_.insert(next, transfer(plan_, plan::Transfer::TO_DEVICE, image, buffer, &operand));
    }
  }

  // Ranges that meet are one.
  static Operands joined(Operands ranges) {
    std::stable_sort(ranges.begin(), ranges.end(),
                     [](const plan::Operand& a, const plan::Operand& b) { return a.offset() < b.offset(); });
    Operands result;
    for (const plan::Operand& range : ranges) {
      plan::Operand* last = result.empty() ? nullptr : &result.back();
      if (last && last->shard_stride() == range.shard_stride() && last->axis() == range.axis() &&
          range.offset() <= last->offset() + last->bytes() &&
          (range.shard_stride() == 0 || range.offset() == last->offset()))
        last->set_bytes(std::max(last->bytes(), range.offset() + range.bytes() - last->offset()));
      else
        result.push_back(range);
    }
    return result;
  }

  // Launches that read the same bytes, such as the step scalars, share one image: they are copied once.
  uint32_t sharedImage(OpenList::Place launch, uint32_t buffer, const Operands& inputs) {
    auto writer = writer_.find(buffer);
    Key key{buffer, writer == writer_.end() ? nullptr : writer->second->get(), {}};
    for (const plan::Operand& of : inputs)
      std::get<2>(key).push_back({of.offset(), of.bytes(), of.shard_stride(), static_cast<uint64_t>(of.axis())});
    auto [known, fresh] = images_.try_emplace(key);
    if (fresh) known->second = newImage(launch, buffer, inputs);
    return known->second;
  }

  // Its inputs are copied as soon as they have been written: then the device's bytes are free.
  uint32_t newImage(OpenList::Place launch, uint32_t buffer, const Operands& inputs) {
    const uint64_t number = count_[buffer]++;
    const std::string& name = plan_.buffers(static_cast<int>(buffer)).name();
    const uint32_t image =
        added_.addLike(buffer, number ? cat(name, ".host.", number) : cat(name, ".host"), plan::Buffer::HOST);
    auto writer = writer_.find(buffer);
    const OpenList::Place place = writer == writer_.end() ? launch : std::next(writer->second);
    for (const plan::Operand& operand : inputs)
      list_.insert(place, transfer(plan_, plan::Transfer::TO_HOST, buffer, image, &operand));
    return image;
  }

  using Key = std::tuple<uint32_t, const plan::Instruction*, std::vector<std::array<uint64_t, 4>>>;

  plan::Plan& plan_;
  OpenList list_;
  NewBuffers& added_;
  std::map<uint32_t, OpenList::Place> writer_;  // the latest writer of each device buffer
  std::map<uint32_t, uint64_t> count_;          // images of each buffer
  std::map<Key, uint32_t> images_;
};

}  // namespace

Status copyHostOperands(Draft& draft) {
  NewBuffers added(draft.plan);
  for (plan::InstructionList* list : roundsOf(draft.plan)) OperandCopier(draft.plan, *list, added).run();
  added.settle();
  return {};
}

}  // namespace sheaf::plan_ir
