// Executes a plan's instructions on symbolic values, on every rank by itself.
//
// A value is a term, and an element of it an index into the value. What moves or is combined element by element is
// followed by the element, so that it does not matter how a value is cut into shards, rows of leaves or pieces of
// memory: inputs by the row of the global batch, state by the element of its bucket, sums by their tree. What is
// computed from whole tensors is followed by the leaf (kernels), the product or the sequence or image (library calls).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/plan/Library.h"
#include "runtime/plan/leaves/Contents.h"
#include "runtime/plan/leaves/KernelProgram.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::plan {

// Bytes of an operand: pieces of `width`, repeated along each dimension, the outermost first. In this order they are
// the bytes of a value.
struct Strided {
  struct Dimension {
    uint64_t count;
    int64_t step;  // bytes
  };
  uint64_t offset = 0;  // from the operand's first byte
  std::vector<Dimension> dimensions = {};
  uint64_t width = 0;
};

// Where a value comes from.
struct Made {
  const Instruction* by = nullptr;  // null: it was there before the run
  std::string name = {};            // of what no instruction computes: "input 'x'"
  uint64_t operation = 0;
  std::vector<uint64_t> of = {};  // values; of a whole tensor those that it begins with
};
using Makers = std::unordered_map<uint64_t, Made>;  // by value

class Machine {
 public:
  // Pieces of values that an untrusted plan may have at most: some minutes.
  static constexpr uint64_t kMostPieces = uint64_t{1} << 30;

  // For plans that verifyPlan() has accepted. The plan must outlive the object, and so must `makers`, which gets an
  // entry for each value that an instruction computes, if it is given. More than `most` pieces are an error.
  explicit Machine(const Plan& plan, Makers* makers = nullptr, uint64_t most = kMostPieces);

  // Executes a list of instructions on all ranks, one after the other. The first error ends it.
  void execute(const google::protobuf::RepeatedPtrField<Instruction>& list, int64_t microBatch);
  const Status& status() const { return status_; }
  // Whether the error is that there are too many pieces.
  bool exhausted() const { return exhausted_; }

  // What a rank's buffer holds.
  Contents contents(int64_t rank, uint32_t buffer, uint64_t begin, uint64_t length);
  // What a rank has handed to the host, in the order of the instructions.
  struct Written {
    const Instruction* output;
    Contents contents;
  };
  const std::vector<Written>& written(int64_t rank) const { return written_[static_cast<size_t>(rank)]; }

 private:
  friend class CallMachine;

  void initialize();
  void state(uint32_t buffer, uint64_t value, int64_t parts, std::string name);
  void constant(const Constant& constant);
  void step(const Instruction& instruction);
  void kernel(const Instruction& launch, int64_t rank);
  void collective(const Instruction& instruction);
  void input(const Instruction& instruction, int64_t rank);
  void scalars(const Instruction& instruction, int64_t rank);

  // Which piece of the batch's rows the rank has now.
  uint64_t dataIndex(int64_t rank) const;

  Bytes& bytes(int64_t rank, const Operand& operand);
  uint64_t address(int64_t rank, const Operand& operand) const;
  Contents read(int64_t rank, const Operand& operand, uint64_t offset, uint64_t length);
  void write(int64_t rank, const Operand& operand, uint64_t offset, const Contents& contents);
  uint64_t sequence(int64_t rank, const Operand& operand, const Strided& place);
  void collect(const Bytes& bytes, uint64_t base, std::span<const Strided::Dimension> dimensions, uint64_t width,
               Sequence& sequence);
  void writeValue(int64_t rank, const Operand& operand, const Strided& place, uint64_t value);

  // Rows of one leaf of an operand, in elements.
  Contents load(int64_t rank, const Operand& operand, const ProgramLine& line, int64_t leaves, int64_t leaf);
  void store(int64_t rank, const Operand& operand, const ProgramLine& line, int64_t leaves, int64_t leaf,
             const Contents& contents);
  template <typename Visit>
  void forEachPiece(const ProgramLine& line, int64_t leaves, int64_t leaf, Visit visit);
  Contents evaluate(const ProgramLine& line, const KernelProgram& program, std::span<const Contents* const> operands);

  // What a type is computed in.
  static ElementType widened(ElementType type);
  // Element i of the result depends on elements i of the operands.
  Contents map(std::string_view name, uint64_t attributes, ElementType type, std::span<const Contents* const> operands);
  // What is left of f32 values in memory of a type.
  Contents rounded(ElementType type, const Contents& contents);
  // The sum over ranks in the order of runtime/comm/local/Reduce.h; `before`: what it goes on from, or null.
  Contents sum(ElementType type, std::span<const Contents> terms, const Contents* before);
  Contents tree(ElementType type, std::span<const Contents> terms);

  Contents toElements(const Contents& bytes, uint64_t width);
  static Contents toBytes(const Contents& elements, uint64_t width);

  void noteSource(uint64_t value, std::string name);
  void note(uint64_t value, uint64_t operation, std::vector<uint64_t> of);
  static void addValues(const Contents& contents, std::vector<uint64_t>& values);

  // Counts pieces of values, of which an untrusted plan may not have any number.
  void work(uint64_t pieces = 1);
  void fail(std::string message);

  const Plan& plan_;
  Makers* const makers_;
  std::vector<uint64_t>* collected_ = nullptr;  // values of the sequences that are read
  std::vector<KernelProgram> programs_;
  std::vector<std::vector<Bytes>> memory_;  // by rank and buffer
  std::vector<std::vector<Written>> written_;
  int64_t microBatch_ = 0;
  bool evaluates_ = false;
  const Instruction* current_ = nullptr;
  uint64_t left_;
  bool exhausted_ = false;
  Status status_;
};

// Executes one library call on one rank.
void executeCall(Machine& machine, const Instruction& instruction, int64_t rank);

// The value of bytes that are zero.
uint64_t zeroValue();

}  // namespace sheaf::plan
