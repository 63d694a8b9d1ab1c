// A small training plan made by hand, at every stage, and what its run must compute.
//
// The model is loss = sum over the batch of x . p, p the bucket's 128 elements: `w` (8 x 6, the transposed 6 x 8 of the
// weight files) at 0, `b` (10) at 64, padding between. The update is m += gradient; p -= lr * m.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "runtime/plan/Library.h"
#include "runtime/plan/MemoryByKind.h"
#include "runtime/plan/Tiles.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/plan.pb.h"
#include "test/TemporaryFolder.h"
#include "test/runtime/UpdateKernel.h"

namespace sheaf::testing {

inline constexpr uint64_t kElements = 128;
inline constexpr uint64_t kBiasOffset = 64;

inline void writeFile(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary).write(content.data(), static_cast<std::streamsize>(content.size()));
}
inline std::string readFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A .npy file's bytes.
template <typename T>
std::string npy(const std::string& descr, const std::vector<int64_t>& shape, const std::vector<T>& values) {
  std::string text = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': (";
  for (int64_t size : shape) text += std::to_string(size) + ", ";
  text += "), }";
  text.resize((text.size() + 10 + 1 + 63) / 64 * 64 - 10 - 1, ' ');
  text += '\n';
  std::string file("\x93NUMPY\x01\x00", 8);
  file += static_cast<char>(text.size() & 255);
  file += static_cast<char>(text.size() >> 8);
  file += text;
  return file.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

class TrainingPlan {
 public:
  TrainingPlan(int64_t ranks, int stage, int64_t batch) : ranks_(static_cast<uint64_t>(ranks)), stage_(stage) {
    plan.set_version(sheaf::plan::kPlanVersion);
    plan.set_producer("test");
    plan.set_model("by-hand");
    plan.set_ranks(ranks);
    plan.set_zero_stage(stage);
    plan.set_batch(batch);
    plan.set_max_threads(2);
    plan.add_streams("compute");
    plan.add_streams("communication");
    plan.set_communicators(1);
    plan.set_events(2);
    tables(batch / ranks);
    step(static_cast<uint64_t>(batch / ranks));
    plan.mutable_memory()->set_peak_bytes(end_);
    plan.mutable_memory()->set_library_bytes(sheaf::plan::libraryBytes(plan));
    sheaf::plan::declareMemoryByKind(plan);
  }

  sheaf::plan::Plan plan;

  // What a rank does at least, by hand: the product of `rows` rows with 128 elements; of 58 parameters the gradient is
  // read, parameter and momentum are read and written; gradients are reduced, sums or parameters gathered.
  sheaf::plan::StepWork floor() const {
    sheaf::plan::StepWork floor;
    sheaf::plan::ProductFlops& products = *floor.add_products();
    products.set_type(sheaf::plan::F32);
    products.set_flops(2 * kElements * static_cast<uint64_t>(plan.batch()) / ranks_);
    floor.set_state_bytes(58 * 5 * sizeof(float) / (stage_ >= 1 ? ranks_ : 1));
    floor.set_reduced_bytes(58 * sizeof(float));
    floor.set_gathered_bytes(58 * sizeof(float));
    return floor;
  }

  // The initial bytes of both parameters, in the plan's layout: what the plan's file `weights.bin` holds.
  static std::vector<float> initial() {
    std::vector<float> values(58);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 7) * 0.25f - 0.5f;
    return values;
  }

 private:
  uint32_t buffer(const std::string& name, sheaf::plan::BufferKind kind, uint64_t bytes, bool persistent = false) {
    sheaf::plan::Buffer* buffer = plan.add_buffers();
    buffer->set_name(name);
    buffer->set_kind(kind);
    // Scratch on a GPU must start there; nothing else minds.
    buffer->set_offset((end_ + sheaf::plan::kDeviceAlignment - 1) / sheaf::plan::kDeviceAlignment *
                       sheaf::plan::kDeviceAlignment);
    buffer->set_bytes(bytes);
    buffer->set_persistent(persistent);
    end_ = buffer->offset() + bytes;
    return static_cast<uint32_t>(plan.buffers_size() - 1);
  }

  sheaf::plan::Operand operand(uint32_t buffer, uint64_t bytes, sheaf::plan::Access access, uint64_t stride = 0) {
    sheaf::plan::Operand operand;
    operand.set_buffer(buffer);
    operand.set_bytes(bytes);
    operand.set_access(access);
    operand.set_shard_stride(stride);
    return operand;
  }

  void parameter(const std::string& name, std::vector<int64_t> shape, std::vector<int64_t> permutation, uint64_t offset,
                 uint64_t source, uint64_t count) {
    sheaf::plan::Parameter* parameter = plan.add_parameters();
    parameter->set_name(name);
    parameter->set_type(sheaf::plan::F32);
    for (int64_t size : shape) parameter->add_shape(size);
    for (int64_t dimension : permutation) parameter->add_permutation(dimension);
    parameter->set_trainable(true);
    parameter->set_offset(offset);
    parameter->mutable_source()->set_offset(source);
    parameter->mutable_source()->set_length(count * sizeof(float));
  }

  void tables(int64_t rows) {
    const uint64_t whole = kElements * sizeof(float), shard = whole / ranks_;
    parameters_ = buffer("parameters", sheaf::plan::PARAMETERS, stage_ >= 3 ? shard : whole, true);
    momentum_ = buffer("momentum", sheaf::plan::OPTIMIZER, stage_ >= 1 ? shard : whole, true);
    sheaf::plan::Bucket* bucket = plan.add_buckets();
    bucket->set_name("all");
    bucket->set_type(sheaf::plan::F32);
    bucket->set_elements(kElements);
    bucket->set_parameter_buffer(parameters_);
    bucket->set_parameters_sharded(stage_ >= 3);
    bucket->set_states_sharded(stage_ >= 1);
    bucket->set_trainable(true);
    sheaf::plan::State* state = bucket->add_states();
    state->set_name("momentum");
    state->set_buffer(momentum_);
    plan.add_files()->set_path("weights.bin");
    parameter("w", {8, 6}, {1, 0}, 0, 0, 48);
    parameter("b", {10}, {}, kBiasOffset, 48 * sizeof(float), 10);
    sheaf::plan::Input* input = plan.add_inputs();
    input->set_name("x");
    input->set_type(sheaf::plan::F32);
    input->add_shape(rows);
    input->add_shape(kElements);
    sheaf::plan::StepScalar* scalar = plan.add_scalars();
    scalar->set_kind(sheaf::plan::StepScalar::LR_TIMES);
    scalar->set_value(1);
    plan.mutable_training()->set_optimizer("momentum by hand");
    plan.mutable_training()->set_learning_rate(0.125);
    addUpdateKernel(plan, stage_ >= 1 ? shard : whole);
    addUpdateImage(plan, "cpu");
  }

  sheaf::plan::Instruction& add(const std::string& label, uint32_t stream = 0) {
    sheaf::plan::Instruction* instruction = plan.add_body();
    instruction->set_label(label);
    instruction->set_stream(stream);
    return *instruction;
  }

  void call(const sheaf::plan::AnyCall& call, const std::vector<sheaf::plan::Operand>& operands) {
    const std::string function(sheaf::plan::nameOf(call));
    sheaf::plan::Instruction& instruction = add(function);
    sheaf::plan::LibraryCall& wire = *instruction.mutable_call() = sheaf::plan::toWire(call);
    for (const sheaf::plan::Operand& operand : operands) *instruction.add_operands() = operand;
    wire.set_scratch_per_thread(sheaf::plan::scratchPerThread(call));
    wire.set_device_scratch(sheaf::plan::deviceScratch(call));
    const uint64_t bytes = std::max(wire.scratch_per_thread() * plan.max_threads(), wire.device_scratch());
    if (bytes > 0)
      *instruction.add_operands() =
          operand(buffer(function + " scratch", sheaf::plan::WORKSPACE, bytes), bytes, sheaf::plan::READ_WRITE);
  }

  void collective(sheaf::plan::CollectiveOp op, sheaf::plan::ElementType type, uint64_t count,
                  const sheaf::plan::Operand& source, const sheaf::plan::Operand& destination, const char* bucket) {
    sheaf::plan::Instruction& instruction = add(bucket);
    *instruction.add_operands() = source;
    *instruction.add_operands() = destination;
    sheaf::plan::Collective& collective = *instruction.mutable_collective();
    collective.set_op(op);
    collective.set_type(type);
    collective.set_count(count);
    collective.set_bucket(bucket);
    collective.set_phase(op == sheaf::plan::ALL_GATHER ? sheaf::plan::Collective::FORWARD
                                                       : sheaf::plan::Collective::BACKWARD);
  }

  sheaf::plan::Instruction& read(const char* label, const sheaf::plan::Operand& destination) {
    sheaf::plan::Instruction& instruction = add(label, 1);
    *instruction.add_operands() = destination;
    return instruction;
  }

  void write(const char* label, sheaf::plan::OutputKind kind, const sheaf::plan::Operand& source) {
    sheaf::plan::Instruction& instruction = add(label);
    instruction.mutable_output()->set_output(kind);
    *instruction.add_operands() = source;
  }

  void step(uint64_t rows) {
    using namespace sheaf::plan;
    const int64_t n = static_cast<int64_t>(kElements), b = static_cast<int64_t>(rows);
    const uint64_t whole = kElements * sizeof(float), shard = whole / ranks_, part = kElements / ranks_;
    uint32_t x = buffer("x", ACTIVATIONS, rows * whole), scalars = buffer("scalars", ACTIVATIONS, sizeof(float));
    // The step before must be done with its inputs.
    add("inputs are free", 1).mutable_wait()->set_event(1);
    read("x", operand(x, rows * whole, WRITE)).mutable_input();
    read("scalars", operand(scalars, sizeof(float), WRITE)).mutable_scalars();
    add("inputs are there", 1).mutable_record();
    add("inputs are there").mutable_wait();
    uint32_t values = parameters_;
    if (stage_ >= 3) {
      values = buffer("gathered", GATHERED, whole);
      collective(ALL_GATHER, F32, part, operand(parameters_, shard, READ), operand(values, whole, WRITE), "all");
    }
    uint32_t y = buffer("y", ACTIVATIONS, rows * sizeof(float)), loss = buffer("loss", ACTIVATIONS, sizeof(float));
    call(GemmCall{.m = b, .n = 1, .k = n, .lda = n, .ldb = 1, .ldc = 1},
         {operand(x, rows * whole, READ), operand(values, whole, READ), operand(y, rows * sizeof(float), WRITE)});
    call(SumPartialsCall{.p = b, .c = 1},
         {operand(y, rows * sizeof(float), READ), operand(loss, sizeof(float), WRITE)});
    collective(ALL_REDUCE, F32, 1, operand(loss, sizeof(float), READ), operand(loss, sizeof(float), WRITE), "");
    uint32_t unreduced = buffer("unreduced", stage_ >= 2 ? GATHERED : GRADIENTS, whole);
    call(SumPartialsCall{.p = b, .c = n}, {operand(x, rows * whole, READ), operand(unreduced, whole, WRITE)});
    uint32_t gradient = unreduced;
    if (stage_ >= 2) {
      gradient = buffer("gradient", GRADIENTS, shard);
      collective(REDUCE_SCATTER, F32, part, operand(unreduced, whole, READ), operand(gradient, shard, WRITE), "all");
    } else {
      collective(ALL_REDUCE, F32, kElements, operand(unreduced, whole, READ), operand(unreduced, whole, WRITE), "all");
    }
    norm(gradient);
    update(gradient, scalars);
    write("loss", LOSS, operand(loss, sizeof(float), READ));
    add("inputs are free").mutable_record()->set_event(1);
  }

  // The norm from every rank's square sum of its own part, whether it holds more or not.
  void norm(uint32_t gradient) {
    using namespace sheaf::plan;
    const uint64_t shard = kElements * sizeof(float) / ranks_;
    uint32_t own = buffer("own square", ACTIVATIONS, sizeof(double));
    uint32_t all = buffer("squares", ACTIVATIONS, ranks_ * sizeof(double));
    uint32_t norm = buffer("norm", ACTIVATIONS, sizeof(double)),
             scale = buffer("scale", ACTIVATIONS, 2 * sizeof(float));
    call(SquareSumCall{.n = static_cast<int64_t>(kElements / ranks_)},
         {operand(gradient, shard, READ, stage_ >= 2 ? 0 : shard), operand(own, sizeof(double), WRITE)});
    collective(ALL_GATHER, F64, 1, operand(own, sizeof(double), READ), operand(all, ranks_ * sizeof(double), WRITE),
               "");
    call(GradientNormCall{.ranks = static_cast<int64_t>(ranks_), .buckets = 1},
         {operand(all, ranks_ * sizeof(double), READ), operand(norm, sizeof(double), WRITE),
          operand(scale, 2 * sizeof(float), WRITE)});
    write("norm", GRADIENT_NORM, operand(norm, sizeof(double), READ));
  }

  void update(uint32_t gradient, uint32_t scalars) {
    using namespace sheaf::plan;
    const uint64_t whole = kElements * sizeof(float), shard = whole / ranks_;
    const uint64_t bytes = stage_ >= 1 ? shard : whole;
    Instruction& instruction = add("update all");
    instruction.set_updates_bucket(1);
    KernelLaunch& launch = *instruction.mutable_kernel();
    launch.set_rows(static_cast<int64_t>(bytes / sizeof(float)));
    launch.set_block(8);
    bool own = stage_ == 1 || stage_ == 2;  // the rank's part of replicated parameters
    *instruction.add_operands() = operand(parameters_, bytes, READ_WRITE, own ? shard : 0);
    *instruction.add_operands() = operand(gradient, bytes, READ, stage_ == 1 ? shard : 0);
    *instruction.add_operands() = operand(momentum_, bytes, READ_WRITE);
    *instruction.add_operands() = operand(scalars, sizeof(float), READ);
    if (own)
      collective(ALL_GATHER, F32, kElements / ranks_, operand(parameters_, shard, READ, shard),
                 operand(parameters_, whole, WRITE), "all");
  }

  const uint64_t ranks_;
  const int stage_;
  uint64_t end_ = 0;
  uint32_t parameters_ = 0, momentum_ = 0;
};

// Rows of the plan's input: multiples of 1/8, and zero where the bucket has padding, so that all sums are exact in f32.
inline std::vector<float> trainingRows(size_t rows) {
  std::vector<float> x(rows * kElements);
  for (size_t i = 0; i < x.size(); ++i) {
    size_t at = i % kElements;
    if (at < 48 || (at >= kBiasOffset && at < kBiasOffset + 10)) x[i] = static_cast<float>(i * 37 % 17) / 8 - 1;
  }
  return x;
}

// x.npy and weights.bin: what a run of the plan reads.
inline void writeTrainingFiles(const TemporaryFolder& folder, int64_t rows) {
  const std::vector<float> x = trainingRows(static_cast<size_t>(rows)), weights = TrainingPlan::initial();
  writeFile(folder / "x.npy", npy<float>("<f4", {rows, kElements}, x));
  writeFile(folder / "weights.bin", std::string(reinterpret_cast<const char*>(weights.data()), weights.size() * 4));
}

}  // namespace sheaf::testing
