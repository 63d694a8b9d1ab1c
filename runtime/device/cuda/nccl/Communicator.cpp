#include "runtime/device/cuda/nccl/Communicator.h"

#include <thread>
#include <utility>

#include "runtime/base/Text.h"

namespace sheaf::nccl {

Status Communicator::open(int ranks, const ncclUniqueId& id, int rank, ncclConfig_t config) {
  std::lock_guard lock(mutex_);
  config.blocking = 0;
  return finish(api_.commInitRankConfig(&comm_, ranks, id, rank, &config), "join the other processes");
}

Status Communicator::setWindow(std::byte* memory, uint64_t bytes) {
  if (ncclWindow_t window = std::exchange(window_, nullptr))
    SHEAF_RETURN_IF_ERROR(
        call("release a window", [&](ncclComm_t comm) { return api_.commWindowDeregister(comm, window); }));
  if (!memory) return {};
  // NCCL writes the handle when it is done, which may be after an error here.
  return call("register memory as a window (SHEAF_NCCL_WINDOWS=0 runs without)", [&](ncclComm_t comm) {
    return api_.commWindowRegister(comm, memory, bytes, &window_, NCCL_WIN_COLL_SYMMETRIC);
  });
}

Status Communicator::error() {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || !comm_) return {};
  ncclResult_t result = ncclSuccess;
  if (ncclResult_t asked = api_.commGetAsyncError(comm_, &result); asked != ncclSuccess) result = asked;
  return usable(result) ? Status() : failure(result, "failed");
}

void Communicator::close() {
  if (signal_.raised()) return abort();
  const Status ended = call("close a communicator", [&](ncclComm_t comm) { return api_.commFinalize(comm); });
  if (!ended.ok()) return abort();
  (void)api_.commDestroy(take());
}

void Communicator::abort() {
  if (ncclComm_t comm = take()) (void)api_.commAbort(comm);
}

ncclComm_t Communicator::take() {
  std::lock_guard lock(mutex_);
  return std::exchange(comm_, nullptr);
}

Status Communicator::finish(ncclResult_t result, const char* what) {
  const auto deadline = std::chrono::steady_clock::now() + limit_;
  while (comm_ && usable(result)) {
    if (ncclResult_t asked = api_.commGetAsyncError(comm_, &result); asked != ncclSuccess) result = asked;
    if (result != ncclInProgress) break;
    if (signal_.raised()) return signal_.status();
    if (std::chrono::steady_clock::now() > deadline) return Status::error(cat("NCCL could not ", what, " in time"));
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  return result == ncclSuccess ? Status() : failure(result, cat("cannot ", what));
}

Status Communicator::closed() const {
  return signal_.raised() ? signal_.status() : Status::error("the communicator is closed");
}

Status Communicator::failure(ncclResult_t result, const std::string& what) const {
  return Status::error(
      cat("NCCL ", what, ": ", api_.getErrorString(result), " (", comm_ ? api_.getLastError(comm_) : "", ")"));
}

}  // namespace sheaf::nccl
