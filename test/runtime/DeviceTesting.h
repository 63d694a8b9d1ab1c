// Running single instructions and small plans on a device, for tests and benchmarks: the CPU or, where SHEAF_TEST_CUDA
// is defined, a GPU, emulated or not.
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/Text.h"
#include "runtime/device/Device.h"
#include "runtime/plan/Library.h"
#include "runtime/plan/Tiles.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/plan.pb.h"
#include "test/Paths.h"
#include "test/runtime/Numbers.h"

namespace sheaf::testing {

#ifdef SHEAF_TEST_CUDA
inline constexpr bool kOnGpu = true;
#else
inline constexpr bool kOnGpu = false;
#endif

// The device of SHEAF_DEVICE_LIBRARY (its path, in the environment or compiled in); null with a message on stderr if it
// cannot be loaded.
inline Device* testDevice() {
  static Device* device = []() -> Device* {
    const char* moved = std::getenv("SHEAF_DEVICE_LIBRARY");
    void* library = dlopen(moved ? moved : sheaf::paths::kDeviceLibrary, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      fprintf(stderr, "%s\n", dlerror());
      return nullptr;
    }
    return reinterpret_cast<OpenDevice>(dlsym(library, "sheaf_open_device"))();
  }();
  return device;
}

// A plan under construction: buffers are laid out one after the other.
class PlanBuilder {
 public:
  explicit PlanBuilder(uint32_t maxThreads = 8) {
    plan.set_max_threads(maxThreads);
    plan.set_ranks(1);
    for (const char* stream : {"compute", "communication", "io"}) plan.add_streams(stream);
    plan.set_communicators(2);
    plan.set_events(16);
  }

  uint32_t buffer(uint64_t bytes, uint64_t alignment = plan::kAlignment) {
    plan::Buffer* buffer = plan.add_buffers();
    end_ = (end_ + alignment - 1) / alignment * alignment;
    buffer->set_offset(end_);
    buffer->set_bytes(bytes);
    end_ += plan::aligned(bytes);
    plan.mutable_memory()->set_peak_bytes(end_);
    return plan.buffers_size() - 1;
  }
  plan::Operand operand(uint32_t buffer, plan::Access access) const {
    plan::Operand operand;
    operand.set_buffer(buffer);
    operand.set_bytes(plan.buffers(buffer).bytes());
    operand.set_access(access);
    return operand;
  }
  plan::Instruction& instruction(const std::string& label, uint32_t stream = 0,
                                 const std::vector<plan::Operand>& operands = {}) {
    plan::Instruction* instruction = plan.add_body();
    instruction->set_label(label);
    instruction->set_stream(stream);
    for (const plan::Operand& operand : operands) *instruction->add_operands() = operand;
    return *instruction;
  }
  void record(uint32_t event, uint32_t stream) { instruction("record", stream).mutable_record()->set_event(event); }
  void wait(uint32_t event, uint32_t stream) { instruction("wait", stream).mutable_wait()->set_event(event); }
  // Whatever the operands' access. `continues`: the sum goes on from what its destination holds.
  void collective(plan::CollectiveOp op, plan::ElementType type, uint64_t count, const plan::Operand& source,
                  const plan::Operand& destination, uint32_t communicator = 0, uint32_t stream = 1,
                  bool continues = false) {
    plan::Instruction& made = instruction("collective", stream, {source, destination});
    made.mutable_operands(0)->set_access(plan::READ);
    made.mutable_operands(1)->set_access(continues ? plan::READ_WRITE : plan::WRITE);
    plan::Collective* collective = made.mutable_collective();
    collective->set_op(op);
    collective->set_type(type);
    collective->set_count(count);
    collective->set_communicator(communicator);
  }
  // Adds the call on these operands, with a buffer for its scratch.
  void call(const plan::AnyCall& call, const std::vector<plan::Operand>& operands, const std::string& label = "call",
            uint32_t stream = 0) {
    plan::Instruction& made = instruction(label, stream, operands);
    plan::LibraryCall& wire = *made.mutable_call() = plan::toWire(call);
    wire.set_scratch_per_thread(plan::scratchPerThread(call));
    wire.set_device_scratch(plan::deviceScratch(call));
    const uint64_t scratch = std::max(wire.scratch_per_thread() * plan.max_threads(), wire.device_scratch());
    if (scratch > 0) *made.add_operands() = operand(buffer(scratch, plan::kDeviceAlignment), plan::READ_WRITE);
  }

  plan::Plan plan;

 private:
  uint64_t end_ = 0;
};

// An operand of a call: its bytes before and, if it is written, after.
struct Argument {
  std::vector<std::byte> bytes;
  plan::Access access = plan::READ;

  template <typename T>
  static Argument input(const std::vector<T>& values) {
    Argument argument;
    argument.bytes.resize(values.size() * sizeof(T));
    std::memcpy(argument.bytes.data(), values.data(), argument.bytes.size());
    return argument;
  }
  template <typename T>
  static Argument output(size_t count, T fill) {
    Argument argument = input(std::vector<T>(count, fill));
    argument.access = plan::WRITE;
    return argument;
  }
  template <typename T>
  static Argument inOut(const std::vector<T>& values) {
    Argument argument = input(values);
    argument.access = plan::READ_WRITE;
    return argument;
  }
  template <typename T>
  std::vector<T> values() const {
    std::vector<T> result(bytes.size() / sizeof(T));
    std::memcpy(result.data(), bytes.data(), bytes.size());
    return result;
  }
};

struct CallOptions {
  int threads = 1;
  int64_t ranks = 1;  // the result is that of the last one
  int64_t step = 0;
  int64_t seed = 0;
};

// Checks the call, then runs it alone on arguments.
inline Status runCall(const plan::AnyCall& call, std::vector<Argument>& arguments, const CallOptions& options = {}) {
  PlanBuilder builder;
  builder.plan.set_ranks(options.ranks);
  builder.plan.mutable_training()->set_seed(options.seed);
  std::vector<plan::Operand> operands;
  for (const Argument& argument : arguments)
    operands.push_back(builder.operand(builder.buffer(argument.bytes.size()), argument.access));
  builder.call(call, operands, std::string(plan::nameOf(call)));
  const plan::Instruction& instruction = builder.plan.body(0);
  SHEAF_RETURN_IF_ERROR(plan::checkLibraryCall(instruction, builder.plan.max_threads()));
  if (!testDevice()) return Status::error("no device");
  DeviceOptions open;
  open.ranks = options.ranks;
  open.threadsPerRank = options.threads;
  auto contexts = testDevice()->open(builder.plan, open);
  if (!contexts.ok()) return contexts.status();
  auto values = std::make_shared<StepValues>();
  values->step = options.step;
  RankContext& context = *contexts->back();
  for (size_t i = 0; i < arguments.size(); ++i)
    SHEAF_RETURN_IF_ERROR(context.write(builder.plan.buffers(i).offset(), arguments[i].bytes));
  SHEAF_RETURN_IF_ERROR(context.issue(instruction, values));
  SHEAF_RETURN_IF_ERROR(context.synchronize());
  for (size_t i = 0; i < arguments.size(); ++i)
    SHEAF_RETURN_IF_ERROR(context.read(builder.plan.buffers(i).offset(), arguments[i].bytes));
  return Status();
}

// Runs the call with 1, 2 and 5 threads; the arguments become those of the last run. Bits that depend on the number of
// threads are an error.
inline Status runOnThreads(const plan::AnyCall& call, std::vector<Argument>& arguments, CallOptions options = {}) {
  const std::vector<Argument> before = arguments;
  std::vector<Argument> first;
  for (int threads : {1, 2, 5}) {
    arguments = before;
    options.threads = threads;
    SHEAF_RETURN_IF_ERROR(runCall(call, arguments, options));
    if (threads == 1) first = arguments;
    for (size_t i = 0; i < arguments.size(); ++i)
      if (arguments[i].bytes != first[i].bytes)
        return Status::error(cat("operand ", i, " on ", threads, " threads differs from that on one"));
  }
  return Status();
}

// Records and waits that end only if a wait is for the latest record before it.
inline void addLatestRecords(PlanBuilder& builder) {
  builder.wait(5, 0);  // never recorded
  builder.wait(0, 1);  // recorded later only
  builder.record(1, 1);
  builder.wait(1, 0);
  builder.record(0, 0);
  builder.wait(0, 1);
  // A second record on another stream: the wait is for it, not for the first.
  builder.record(1, 2);
  builder.wait(1, 1);
}

}  // namespace sheaf::testing
