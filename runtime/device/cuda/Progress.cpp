#include "runtime/device/cuda/Progress.h"

#include "runtime/device/cuda/kernels/Mark.h"
#include "runtime/plan/Types.h"

namespace sheaf::cuda {
namespace {

const plan::Instruction& instructionOf(const plan::Plan& plan, int number) {
  const std::vector<plan::Section> sections = plan::sectionsOf(plan);
  auto section = sections.begin();
  for (; number >= section->list->size(); ++section) number -= section->list->size();
  return section->list->Get(number);
}

}  // namespace

Expected<std::unique_ptr<Progress>> Progress::create(const plan::Plan& plan) {
  std::unique_ptr<Progress> progress(new Progress(plan));
  Expected<PinnedMemory> memory = makePinned(sizeof(Place) * static_cast<size_t>(std::max(plan.streams_size(), 1)));
  if (!memory.ok()) return memory.status();
  progress->memory_ = std::move(*memory);
  return progress;
}

Status Progress::mark(uint32_t stream, uint32_t number, cudaStream_t on) {
  uint32_t* place = reinterpret_cast<uint32_t*>(memory_.get() + stream * sizeof(Place));
  return check(cuda::mark(place, number + 1, on), "cannot note how far the stream is");
}

uint64_t Progress::count() const {
  uint64_t sum = 0;
  for (int stream = 0; stream < plan_.streams_size(); ++stream)
    sum += __atomic_load_n(&places()[stream].marks, __ATOMIC_RELAXED);
  return sum;
}

std::string Progress::text() const {
  std::string text;
  for (int stream = 0; stream < plan_.streams_size(); ++stream) {
    const uint32_t number = __atomic_load_n(&places()[stream].number, __ATOMIC_RELAXED);
    if (number == 0) continue;
    text += (text.empty() ? "" : ", ") + plan::describe(plan_, instructionOf(plan_, static_cast<int>(number - 1)));
  }
  return text.empty() ? "before the first instruction" : text;
}

}  // namespace sheaf::cuda
