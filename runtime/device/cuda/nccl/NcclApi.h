// The functions of NCCL that we use, found at run time: a machine without libnccl can still run ranks of one process.
#pragma once

#include <nccl.h>

#include "runtime/base/Status.h"

// In headers from 2.28.3 on. What may be passed depends on the version of the library, not of this header: the field
// ncclConfig_t::CTAPolicy is there from 2.27.3 on.
#if NCCL_VERSION_CODE < NCCL_VERSION(2, 28, 0)
#define NCCL_CTA_POLICY_ZERO 0x02
#define NCCL_WIN_REQUIRED_ALIGNMENT 4096
#endif

namespace sheaf::nccl {

struct Api {
  int version = 0;  // 22809 for 2.28.9
  decltype(&ncclGetVersion) getVersion = nullptr;
  decltype(&ncclGetUniqueId) getUniqueId = nullptr;
  decltype(&ncclCommInitRankConfig) commInitRankConfig = nullptr;
  decltype(&ncclCommFinalize) commFinalize = nullptr;
  decltype(&ncclCommDestroy) commDestroy = nullptr;
  decltype(&ncclCommAbort) commAbort = nullptr;
  decltype(&ncclCommGetAsyncError) commGetAsyncError = nullptr;
  decltype(&ncclGetErrorString) getErrorString = nullptr;
  decltype(&ncclGetLastError) getLastError = nullptr;
  decltype(&ncclAllGather) allGather = nullptr;
  decltype(&ncclReduceScatter) reduceScatter = nullptr;
  decltype(&ncclAllReduce) allReduce = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) recv = nullptr;
  decltype(&ncclGroupStart) groupStart = nullptr;
  decltype(&ncclGroupEnd) groupEnd = nullptr;
  // From 2.27 on, else null: memory that all GPUs of a job see as one.
  decltype(&ncclMemAlloc) memAlloc = nullptr;
  decltype(&ncclMemFree) memFree = nullptr;
  decltype(&ncclCommWindowRegister) commWindowRegister = nullptr;
  decltype(&ncclCommWindowDeregister) commWindowDeregister = nullptr;
};

// One clear error if there is no NCCL, or one that is too old. The table lives for ever.
Expected<const Api*> loadNccl();

}  // namespace sheaf::nccl
