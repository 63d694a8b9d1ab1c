#include "runtime/device/cuda/nccl/NcclApi.h"

#include <dlfcn.h>

#include "runtime/base/Text.h"

namespace sheaf::nccl {
namespace {

// The oldest version whose sources were read for the rules that this device follows (docs/cuda-emulation.md).
constexpr int kOldest = 21800;
constexpr int kWindows = 22700;

Expected<Api> load() {
  void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (!library)
    return Status::error(cat("ranks in several processes need NCCL, and it cannot be loaded: ", dlerror(),
                             "; install it, or name its folder in LD_LIBRARY_PATH"));
  Api api;
  std::string missing;
  auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (!function && missing.empty()) missing = name;
  };
  find(api.getVersion, "ncclGetVersion");
  find(api.getUniqueId, "ncclGetUniqueId");
  find(api.commInitRankConfig, "ncclCommInitRankConfig");
  find(api.commFinalize, "ncclCommFinalize");
  find(api.commDestroy, "ncclCommDestroy");
  find(api.commAbort, "ncclCommAbort");
  find(api.commGetAsyncError, "ncclCommGetAsyncError");
  find(api.getErrorString, "ncclGetErrorString");
  find(api.getLastError, "ncclGetLastError");
  find(api.allGather, "ncclAllGather");
  find(api.reduceScatter, "ncclReduceScatter");
  find(api.allReduce, "ncclAllReduce");
  find(api.send, "ncclSend");
  find(api.recv, "ncclRecv");
  find(api.groupStart, "ncclGroupStart");
  find(api.groupEnd, "ncclGroupEnd");
  if (!missing.empty()) return Status::error(cat("libnccl.so.2 is too old: it has no ", missing));
  if (api.getVersion(&api.version) != ncclSuccess || api.version < kOldest)
    return Status::error(cat("libnccl.so.2 is version ", api.version, ", it must be at least ", kOldest));
  if (api.version >= kWindows) {
    find(api.memAlloc, "ncclMemAlloc");
    find(api.memFree, "ncclMemFree");
    find(api.commWindowRegister, "ncclCommWindowRegister");
    find(api.commWindowDeregister, "ncclCommWindowDeregister");
  }
  return api;
}

}  // namespace

Expected<const Api*> loadNccl() {
  static const Expected<Api> api = load();
  if (!api.ok()) return api.status();
  return &*api;
}

}  // namespace sheaf::nccl
