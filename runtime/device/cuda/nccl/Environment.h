// Variables of the environment that decide what NCCL does.
#pragma once

#include "runtime/base/Status.h"

namespace sheaf::nccl {

// Each process chooses by these how a message travels, and in which order it launches: all must choose the same, or
// they wait for each other.
inline constexpr const char* kAgreed[] = {"NCCL_ALGO",
                                          "NCCL_PROTO",
                                          "NCCL_GRAPH_REGISTER",
                                          "NCCL_CTA_POLICY",
                                          "NCCL_LOCAL_REGISTER",
                                          "NCCL_P2P_LL_THRESHOLD",
                                          "NCCL_WIN_ENABLE",
                                          "NCCL_SYM_CE_THRESHOLD",
                                          "NCCL_CUMEM_ENABLE",
                                          "NCCL_NVLS_ENABLE",
                                          "NCCL_LAUNCH_ORDER_IMPLICIT",
                                          "NCCL_GRAPH_MIXING_SUPPORT",
                                          "NCCL_GRAPH_STREAM_ORDERING"};

// SHEAF_NCCL_WINDOWS.
bool windowsWanted();

// Makes NCCL sum in its ring, whose bits do not change from run to run. An error if the environment says otherwise.
Status chooseRing();

// Returns true if NCCL orders the launches of different communicators by itself in this process. `wanted` asks it to,
// unless the environment says otherwise. NCCL reads the variable once, at its first launch: the first answer holds.
bool launchesAreOrdered(bool wanted);

}  // namespace sheaf::nccl
