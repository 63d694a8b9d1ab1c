#include "runtime/device/cpu/DurableState.h"

#include <algorithm>

#include "runtime/base/AlignedMemory.h"
#include "runtime/base/Hash.h"
#include "runtime/base/Text.h"
#include "runtime/plan/Types.h"

namespace sheaf::cpu {

Expected<std::unique_ptr<FileArena>> openFiles(const plan::Plan& plan, const DeviceOptions& options, int64_t rank) {
  // Besides the state there is room in the files for values of the evaluation, if it keeps some there.
  const bool stores = std::any_of(plan.evaluation().begin(), plan.evaluation().end(), [](const plan::Instruction& i) {
    return i.transfer().kind() == plan::Transfer::WRITE_FILE;
  });
  return FileArena::create({.folders = options.offloadFolders,
                            .rank = rank,
                            .ranks = options.ranks,
                            .bytes = plan::arenaTop(plan, plan::Buffer::FILE),
                            .state = options.fileState,
                            .readOnly = options.fileState && options.fileState->evaluates && !stores,
                            .files = options.files});
}

Expected<std::vector<Committed>> committedStates(const plan::Plan& plan, uint64_t planHash,
                                                 const std::vector<std::string>& folders, int64_t rank,
                                                 FileLayer* files) {
  return FileArena::committed({.folders = folders,
                               .rank = rank,
                               .ranks = plan.ranks(),
                               .bytes = plan::arenaTop(plan, plan::Buffer::FILE),
                               .state = FileState{.plan = planHash, .run = 0, .step = {}},
                               .files = files});
}

Status DurableState::persist(int64_t rank, bool odd, const StepValues* step, std::span<const std::byte> lossScale,
                             const StepValues::Poll& poll) {
  if (!files_.outlivesRun() || !step || !step->commit) return {};
  SHEAF_RETURN_IF_ERROR(files_.persist());
  Expected<std::optional<Committed>> state = step->commit(rank, lossScale, poll);
  if (!state.ok()) return state.status();
  if (!*state) files_.freeze();
  return *state ? files_.commit(odd ? 0 : 1, **state, false) : Status();
}

Status DurableState::checkVotes(float sum, float each) const {
  if (sum == each * static_cast<float>(plan_.ranks())) return {};
  return Status::error(cat("not all of the ", plan_.ranks(), " ranks say that their files are durable"));
}

Status DurableState::commit(bool odd, const Committed& state) {
  SHEAF_RETURN_IF_ERROR(files_.persist());
  return files_.commit(odd ? 1 : 0, state, true);
}

Expected<uint64_t> DurableState::hash(bool odd) {
  constexpr size_t kPiece = 8 << 20;
  const AlignedMemory piece = allocateAligned(kPiece);
  if (!piece) return Status::error("no memory to read the state in files");
  Xxh64 hash;
  for (int b = 0; b < plan_.buffers_size(); ++b) {
    const plan::Buffer& buffer = plan_.buffers(b);
    const uint32_t index = static_cast<uint32_t>(b);
    if (buffer.space() != plan::Buffer::FILE || !buffer.persistent() || generations_.isNext(index)) continue;
    const uint64_t begin = plan_.buffers(static_cast<int>(generations_.placeOf(index, odd))).offset();
    for (uint64_t at = 0; at < buffer.bytes(); at += kPiece) {
      const std::span<std::byte> bytes(piece.get(), std::min<uint64_t>(buffer.bytes() - at, kPiece));
      SHEAF_RETURN_IF_ERROR(files_.read(begin + at, bytes));
      hash.update(bytes);
    }
  }
  return hash.digest();
}

Status DurableState::writeChecksum(bool odd) {
  if (!files_.outlivesRun()) return {};
  Expected<uint64_t> hash = this->hash(odd);
  return hash.ok() ? files_.writeChecksum(*hash) : hash.status();
}

Status DurableState::verifyChecksum(bool odd) {
  if (!files_.hasChecksum()) return {};
  Expected<uint64_t> hash = this->hash(odd);
  return hash.ok() ? files_.verifyChecksum(*hash) : hash.status();
}

int lossScaleIn(const plan::Instruction& persist, const plan::Plan& plan) {
  for (int i = 0; plan.has_loss_scale_buffer() && i < persist.operands_size(); ++i)
    if (persist.operands(i).buffer() == plan.loss_scale_buffer()) return i;
  return -1;
}

}  // namespace sheaf::cpu
