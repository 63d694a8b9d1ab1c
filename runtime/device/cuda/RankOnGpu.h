// A rank as the executor sees it. A thread that calls it uses the rank's GPU from then on: CUDA gives a thread that has
// chosen no device the first one, where its first call would open a context.
#pragma once

#include <memory>
#include <utility>

#include "runtime/device/cuda/CudaContext.h"
#include "runtime/device/cuda/Gpu.h"

namespace sheaf::cuda {

// The only way to a CudaContext, which is a RankContext for this class alone.
class RankOnGpu final : public RankContext {
 public:
  // `gpu`: the index of the rank's GPU.
  RankOnGpu(std::unique_ptr<CudaContext> context, int gpu) : gpu_(gpu), owned_(std::move(context)), rank_(*owned_) {}
  ~RankOnGpu() override;

  Status issue(const plan::Instruction& instruction, std::shared_ptr<const StepValues> step) override;
  Status poll() override;
  Status synchronize() override;
  Status read(uint64_t offset, std::span<std::byte> host) override;
  Status write(uint64_t offset, std::span<const std::byte> host) override;
  Status readSpace(plan::Buffer::Space space, uint64_t offset, std::span<std::byte> host) override;
  Status writeSpace(plan::Buffer::Space space, uint64_t offset, std::span<const std::byte> host) override;
  Status commit(const Committed& state) override;
  Status writeChecksum() override;
  Status verifyChecksum() override;
  uint64_t highestTouchedByte() override;
  Expected<std::unique_ptr<Burst>> prepare(std::span<const plan::Instruction* const> instructions) override;

  // These two make no CUDA calls, and choose no device: an abort must not wait for the driver.
  bool oddGeneration() const override { return rank_.oddGeneration(); }
  void abort(const std::string& why) override { rank_.abort(why); }

 private:
  // Makes the GPU the thread's and returns what `call` returns, or the error that the GPU cannot be used.
  template <typename Call>
  auto onGpu(Call call) -> decltype(call()) {
    if (Status status = useGpu(gpu_); !status.ok()) return status;
    return call();
  }

  const int gpu_;
  std::unique_ptr<CudaContext> owned_;
  RankContext& rank_;
};

}  // namespace sheaf::cuda
