#include "runtime/device/cuda/RankOnGpu.h"

namespace sheaf::cuda {
namespace {

// A burst may be run and destroyed by another thread than the one that prepared it.
class BurstOnGpu : public Burst {
 public:
  BurstOnGpu(std::unique_ptr<Burst> burst, int gpu) : burst_(std::move(burst)), gpu_(gpu) {}
  ~BurstOnGpu() override {
    (void)useGpu(gpu_);
    burst_.reset();
  }
  Expected<double> run() override {
    SHEAF_RETURN_IF_ERROR(useGpu(gpu_));
    return burst_->run();
  }

 private:
  std::unique_ptr<Burst> burst_;
  const int gpu_;
};

}  // namespace

RankOnGpu::~RankOnGpu() {
  (void)useGpu(gpu_);
  owned_.reset();
}

Status RankOnGpu::issue(const plan::Instruction& instruction, std::shared_ptr<const StepValues> step) {
  return onGpu([&] { return rank_.issue(instruction, std::move(step)); });
}

Status RankOnGpu::poll() {
  return onGpu([&] { return rank_.poll(); });
}

Status RankOnGpu::synchronize() {
  return onGpu([&] { return rank_.synchronize(); });
}

Status RankOnGpu::read(uint64_t offset, std::span<std::byte> host) {
  return onGpu([&] { return rank_.read(offset, host); });
}

Status RankOnGpu::write(uint64_t offset, std::span<const std::byte> host) {
  return onGpu([&] { return rank_.write(offset, host); });
}

Status RankOnGpu::readSpace(plan::Buffer::Space space, uint64_t offset, std::span<std::byte> host) {
  return onGpu([&] { return rank_.readSpace(space, offset, host); });
}

Status RankOnGpu::writeSpace(plan::Buffer::Space space, uint64_t offset, std::span<const std::byte> host) {
  return onGpu([&] { return rank_.writeSpace(space, offset, host); });
}

Status RankOnGpu::commit(const Committed& state) {
  return onGpu([&] { return rank_.commit(state); });
}

Status RankOnGpu::writeChecksum() {
  return onGpu([&] { return rank_.writeChecksum(); });
}

Status RankOnGpu::verifyChecksum() {
  return onGpu([&] { return rank_.verifyChecksum(); });
}

uint64_t RankOnGpu::highestTouchedByte() {
  return useGpu(gpu_).ok() ? rank_.highestTouchedByte() : 0;
}

Expected<std::unique_ptr<Burst>> RankOnGpu::prepare(std::span<const plan::Instruction* const> instructions) {
  return onGpu([&]() -> Expected<std::unique_ptr<Burst>> {
    Expected<std::unique_ptr<Burst>> burst = rank_.prepare(instructions);
    if (!burst.ok() || !*burst) return burst;
    return std::unique_ptr<Burst>(std::make_unique<BurstOnGpu>(std::move(*burst), gpu_));
  });
}

}  // namespace sheaf::cuda
