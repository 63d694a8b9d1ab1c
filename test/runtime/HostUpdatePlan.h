// A plan for GPUs, made by hand, whose update runs on the host: each step the gradient and the learning rate go there,
// and the parameters come back.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "test/runtime/CudaTesting.h"
#include "test/runtime/Transfers.h"
#include "test/runtime/UpdateKernel.h"

namespace sheaf::testing {

struct HostUpdatePlan {
  enum Stream : uint32_t { kToHost = 3, kHostCompute, kToDevice };
  // Records of each step. Others are free for `first`.
  enum Event : uint32_t { kScalars = 0, kMoved, kUpdated, kFetched, kFree };

  // Bodies begin with what `first` adds. `oneStream`: everything else is on stream host_compute.
  explicit HostUpdatePlan(uint64_t elements, bool oneStream = false, std::function<void(HostUpdatePlan&)> first = {})
      : bytes(elements * sizeof(float)) {
    plan::Plan& plan = builder.plan;
    for (const char* stream : {"to_host", "host_compute", "to_device"}) plan.add_streams(stream);
    plan.mutable_scalars()->Add();
    addUpdateKernel(plan, bytes);
    // A GPU's own kernel is never launched.
    plan::KernelImage& cuda = *plan.add_images();
    cuda.set_target("cuda:sm_80");
    cuda.set_code(".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry update() { ret; }\n");
    cuda.add_entries()->set_grid(1);
    cuda.mutable_entries(0)->set_threads(32);
    addUpdateImage(plan, "host");
    gradient = builder.buffer(bytes), scalars = builder.buffer(sizeof(float)), result = builder.buffer(bytes);
    uint64_t end = 128;  // not at the beginning
    auto onHost = [&](uint64_t size) {
      const uint32_t buffer = bufferIn(builder, plan::Buffer::HOST, size, end);
      end += plan::aligned(size);
      return buffer;
    };
    parameters = onHost(bytes), hostGradient = onHost(bytes), momentum = onHost(bytes), rate = onHost(sizeof(float));
    if (first) first(*this);
    auto on = [&](uint32_t stream) { return oneStream ? uint32_t{kHostCompute} : stream; };
    builder.wait(kMoved, on(0));
    builder.instruction("scalars", on(0), {builder.operand(scalars, plan::WRITE)}).mutable_scalars();
    builder.record(kScalars, on(0));
    builder.wait(kScalars, on(kToHost));
    builder.wait(kUpdated, on(kToHost));
    transfer(builder, plan::Transfer::TO_HOST, gradient, hostGradient, 0, 0, on(kToHost));
    transfer(builder, plan::Transfer::TO_HOST, scalars, rate, 0, 0, on(kToHost));
    builder.record(kMoved, on(kToHost));
    builder.wait(kMoved, kHostCompute);
    builder.wait(kFetched, kHostCompute);
    update = plan.body_size();
    plan::Instruction& instruction = builder.instruction("all", kHostCompute);
    instruction.set_updates_bucket(1);
    plan::KernelLaunch& launch = *instruction.mutable_kernel();
    launch.set_on_host(true);
    launch.set_rows(static_cast<int64_t>(elements));
    launch.set_block(8);
    for (uint32_t buffer : {parameters, hostGradient, momentum, rate})
      *instruction.add_operands() =
          builder.operand(buffer, buffer == parameters || buffer == momentum ? plan::READ_WRITE : plan::READ);
    builder.record(kUpdated, kHostCompute);
    builder.wait(kUpdated, on(kToDevice));
    transfer(builder, plan::Transfer::TO_DEVICE, parameters, result, 0, 0, on(kToDevice));
    builder.record(kFetched, on(kToDevice));
  }

  uint64_t bytes;
  PlanBuilder builder;
  uint32_t gradient, scalars, result;                 // on the device
  uint32_t parameters, hostGradient, momentum, rate;  // in host memory
  int update;                                         // its index in the body
};

inline float rateOf(int round) {
  return 0.125f * static_cast<float>(round + 1);
}
inline std::vector<float> gradientOf(uint64_t bytes, int round, size_t rank) {
  std::vector<float> values(bytes / sizeof(float));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>((i * 37 + static_cast<size_t>(round) * 11 + rank * 5) % 101) / 7 - 6;
  return values;
}
inline std::shared_ptr<StepValues> valuesOf(int round) {
  auto values = std::make_shared<StepValues>();
  values->step = round;
  values->scalars = {rateOf(round)};
  return values;
}

// What the update computes, from zero on.
struct Momentum {
  explicit Momentum(uint64_t bytes) : p(bytes / sizeof(float)), m(p) {}
  void update(const std::vector<float>& gradient, int round) {
    for (size_t i = 0; i < p.size(); ++i) m[i] += gradient[i], p[i] -= rateOf(round) * m[i];
  }
  std::vector<float> p, m;
};

}  // namespace sheaf::testing
