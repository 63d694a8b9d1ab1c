// How other systems would schedule the same step, played by the same simulator. docs/schedule.md says how each is
// modelled.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/schedule/PeerStep.h"

namespace sheaf::schedule {

enum class Peer { kFsdp2, kDeepSpeed, kDeepCompile, kEager };
inline constexpr Peer kPeers[] = {Peer::kFsdp2, Peer::kDeepSpeed, Peer::kDeepCompile, Peer::kEager};
// "fsdp2", "deepspeed", "deepcompile", "eager".
const char* peerName(Peer peer);

struct PeerResult {
  double seconds = 0;
  uint64_t bytes = 0;  // largest sum of what is alive; no layout is counted
  std::string knobs;   // the best ones
  bool fits = true;    // within the limit
};

// With the knobs that take least time within the limit (0: none), or the fewest bytes where nothing fits.
PeerResult playPeer(const PeerStep& step, Peer peer, uint64_t memoryLimit);

}  // namespace sheaf::schedule
