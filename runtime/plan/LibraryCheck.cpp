// Whether a library call of an untrusted plan is one that a device may run.
#include <algorithm>
#include <string>

#include "runtime/base/Text.h"
#include "runtime/plan/Library.h"

namespace sheaf::plan {
namespace {

Status checkOperand(const Operand& operand, const OperandNeed& need, const std::string& place) {
  if (need.bytes >= static_cast<uint64_t>(INT64_MAX))
    return Status::error(cat(place, " has ", operand.bytes(), " bytes, but the call accesses 2^63 or more"));
  if (operand.bytes() < need.bytes)
    return Status::error(cat(place, " has ", operand.bytes(), " bytes, but ", need.bytes, " are accessed"));
  const uint64_t width = static_cast<uint64_t>(need.width);
  if (operand.offset() % width != 0 || operand.shard_stride() % width != 0)
    return Status::error(cat(place, " does not start at a multiple of its elements' ", width, " bytes"));
  const bool reads = operand.access() == READ || operand.access() == READ_WRITE;
  const bool writes = operand.access() == WRITE || operand.access() == READ_WRITE;
  if (need.access != WRITE && !reads) return Status::error(place + " is read, but not declared so");
  if (need.access != READ && !writes) return Status::error(place + " is written, but not declared so");
  return Status();
}

// A plan reserves nothing for a device that it is not for; what it reserves must suffice.
bool suffices(uint64_t scratch, uint64_t needed, bool wanted) {
  if (scratch == 0) return needed == 0 || !wanted;
  return needed > 0 && scratch >= needed && scratch % sizeof(double) == 0;
}

bool isOfCpus(const AnyCall& any) {
  return std::visit(
      [](const auto& call) {
        if constexpr (requires { call.channelsLast; }) return call.channelsLast;
        return false;
      },
      any);
}

Status checkCall(const Instruction& instruction, const AnyCall& call, uint64_t threads, Devices devices) {
  const LibraryCall& wire = instruction.call();
  std::vector<OperandNeed> needs = operandsOf(call);
  const uint64_t scratch = wire.scratch_per_thread(), needed = scratchPerThread(call);
  if (!suffices(scratch, needed, devices.cpu))
    return Status::error(
        cat("it has ", scratch, " bytes of scratch for each thread, but needs ", needed, "; compile the plan again"));
  if (scratch > INT64_MAX / threads) return Status::error("its scratch is out of range");
  const uint64_t device = wire.device_scratch(), neededThere = deviceScratch(call);
  if (!suffices(device, neededThere, devices.gpu))
    return Status::error(
        cat("it has ", device, " bytes of scratch on a GPU, but needs ", neededThere, "; compile the plan again"));
  if (device > INT64_MAX) return Status::error("its scratch on a GPU is out of range");
  if (devices.gpu && isOfCpus(call)) return Status::error("a GPU has images with their channels first only");
  if (const uint64_t bytes = std::max(scratch * threads, device); bytes > 0)
    needs.push_back({"scratch", READ_WRITE, bytes, 1});
  const int given = instruction.operands_size();
  for (int i = 0; i < static_cast<int>(needs.size()); ++i) {
    const OperandNeed& need = needs[static_cast<size_t>(i)];
    const std::string place = cat("operand ", i, " (", need.name, ")");
    if (i >= given) return Status::error(place + " is missing");
    SHEAF_RETURN_IF_ERROR(checkOperand(instruction.operands(i), need, place));
  }
  if (given > static_cast<int>(needs.size()))
    return Status::error(cat("it takes ", needs.size(), " operands, not ", given));
  return Status();
}

}  // namespace

Status checkLibraryCall(const Instruction& instruction, uint32_t maxThreads, Devices devices) {
  const Expected<AnyCall> call = parseCall(instruction.call());
  if (!call.ok()) return call.status();
  const Status status = checkCall(instruction, *call, std::max<uint64_t>(maxThreads, 1), devices);
  return status.ok() ? status : Status::error(cat(nameOf(*call), ": ", status.message()));
}

}  // namespace sheaf::plan
