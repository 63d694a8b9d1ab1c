// Machine profiles: the time, in seconds, of instructions on one rank and of collectives between ranks. Profiles are
// JSON files. docs/simulator.md documents the format, the formulas and the sources of the shipped profiles' figures.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/Json.h"
#include "runtime/base/Status.h"
#include "runtime/profile/Work.h"

namespace sheaf::profile {

// A collective. `bytes` is the size of the whole array, all ranks' parts together; for an all-reduce, of one rank's.
// It runs in groups of `ranks` ranks, each `stride` after the one before; all groups of the job run at the same time.
// Of N ranks, L a node: {N, 1} is all ranks together, {L, 1} each node by itself, {N / L, L} one rank of every node.
struct Transfer {
  plan::CollectiveOp op = plan::ALL_GATHER;
  uint64_t bytes = 0;
  int64_t ranks = 1;
  int64_t stride = 1;
};

// A quantity as a function of size: interpolated linearly in log(size), constant outside its points.
struct Curve {
  std::vector<std::pair<double, double>> points;  // (size, value), sizes increasing; at least one
  double at(double size) const;
};

// Measured time of a matrix product of this shape, divided by the time that the formula gives.
struct GemmFactor {
  int64_t m, n, k;
  double factor;
};

// Time of a matrix product: 2 batch (m n k + half_m n k + half_n m k + half_k m n + half_results k) / rate seconds.
// If one size equals its half value and the others are large, the product runs at half the rate. The terms model the
// packing or loading of operands, the storing of the result, and (half_results) the part of a GPU that few results
// leave idle. The time is then multiplied by a factor interpolated between the nearest of `shapes` that are within
// half to twice the size.
struct GemmCost {
  plan::ElementType type = plan::F32;
  bool anyLayout = false;  // applies to all combinations of transposes
  bool transposeA = false, transposeB = false;
  bool tf32 = false;  // f32 operands may be rounded to TF32
  double rate = 0;    // flop/s of large products
  double halfM = 0, halfN = 0, halfK = 0, halfResults = 0;
  std::vector<GemmFactor> shapes;
  std::string source;
};

// Time of attention: flops / rate x ((1 + half_width / width) x (1 + half_keys / keys) + half_queries / queries)
// seconds, where `queries` counts those of all heads and sequences. With a causal mask, times (1 + block / keys),
// because tiles on the diagonal are computed whole.
struct AttentionCost {
  plan::ElementType type = plan::F32;
  bool gradient = false;
  double rate = 0, halfWidth = 0, halfKeys = 0, halfQueries = 0, block = 0;
  std::string source;
};

// Compute costs of a rank with this many threads, measured while the other ranks of the machine compute as well.
struct ComputeCost {
  int64_t threads = 1;
  double overhead = 0;  // seconds per instruction
  std::string overheadSource;
  // A kernel takes max(bytes / kernels(bytes), flops / operations) seconds.
  Curve kernels;          // bytes per second, by the bytes that the kernel moves
  double operations = 1;  // per second
  std::string kernelsSource;
  Curve moves;  // bytes per second of the library calls that only move data
  std::string movesSource;
  std::vector<GemmCost> gemm;  // by type and layout
  double epilogues = 0;        // bytes per second of GEMM epilogues; 0: they take no extra time
  std::string epiloguesSource;
  std::vector<AttentionCost> attention;  // by type and direction
  double convolution = 1;                // rate of a convolution / rate of the matrix product that it unrolls to
  std::string convolutionSource;
  // What transfers of files by all ranks divide the rate of computation by while they run, less 1, by the bytes of a
  // transfer; without points they do not slow it down.
  Curve fileSlowdown;
  std::string fileSlowdownSource;
};

// One algorithm of a collective over n ranks on d nodes: latency + hops + sent / bandwidth seconds. All-gather and
// reduce-scatter take (n - d) hops within nodes and (d - 1) between them and send (n - 1) / n of the bytes; all-reduce
// takes twice that (the ring of NCCL's tuning model, src/graph/tuning.cc). The fastest entry that applies is used.
// Between nodes, a group with m of a node's ranks has at most m shares of the node's network.
struct LinkCost {
  plan::CollectiveOp op = plan::COLLECTIVE_OP_UNSPECIFIED;  // unspecified: any
  int64_t ranks = 0;                                        // number of ranks it was measured with; 0: any number
  bool network = false;                                     // between nodes; otherwise within one node
  double latency = 0, hop = 0, networkHop = 0;              // seconds
  Curve bandwidth;                                          // bytes per second, by a rank's share of the bytes
  Curve networkShare;  // the same: of what one rank sends between nodes while all others do; empty: an equal part of
                       // the bandwidth
  std::string source;
};

// Of the bytes of n ranks that transfer at once, times(n) as many pass in a second as of one rank alone: times(1) = 1,
// `times` with `ranks`, from 1 to `ranks`; in between its logarithm is interpolated in log(n), and then it stays.
struct AtOnce {
  int64_t ranks = 1;
  double times = 1;
};
// Time of a transfer between spaces: latency + bytes / bandwidth. Those of a device are a rank's own, files are shared
// by the ranks of a node: where n of them transfer at once, bytes take n / times(n) as long.
struct TransferCost {
  plan::Transfer::Kind kind = plan::Transfer::KIND_UNSPECIFIED;
  double latency = 0;  // seconds
  Curve bandwidth;     // bytes per second, by the bytes that are moved
  AtOnce atOnce;       // of files
  std::string source;
};

// What making a step durable takes besides its writes (Persist of plan.proto): the syncs of a rank's files and of its
// record. The ranks of a node are taken to do it at the same time.
struct PersistCost {
  double seconds = 0;
  std::string source;
};

// Seconds of an instruction on a rank that has its cores for itself.
double seconds(const ComputeCost& costs, const Work& work);

// What a profile's file holds.
struct ProfileData {
  std::string name, description;
  int64_t ranks = 1;
  int64_t ranksPerNode = 1;  // how many reach each other without the network
  int64_t cores = 0;         // shared by the ranks; 0: each rank has a device of its own
  uint64_t memoryBytes = 0;  // of a rank's device, or of the machine whose cores the ranks share
  std::string memorySource;
  std::vector<ComputeCost> compute;  // by threads, increasing
  std::vector<LinkCost> links;
  double slowdown = 0;                    // where every thread has a core of its own
  std::optional<double> networkSlowdown;  // at most the slowdown, which it is if there is none
  std::string slowdownSource;
  std::vector<TransferCost> transfers;  // each kind at most once
  std::optional<PersistCost> persist;
  double hostBandwidth = 0;  // bytes per second of a node's host memory; 0: not known
  std::string hostSource;
  double hostUpdates = 0;  // elements per second that a node's processors update by Adam in f32; 0: not known
  std::string hostUpdatesSource;
};

class Profile {
 public:
  // `data` is not checked: it comes from a measurement or from parse().
  explicit Profile(ProfileData data) : data_(std::move(data)) {}
  // The text of a profile's file. An error begins with `place` and names the key and what it takes.
  static Expected<Profile> parse(std::string_view text, const std::string& place);
  json::Value toJson() const;

  // The same type of machine with another number of ranks. An error if that takes several nodes and the profile has no
  // costs of a network, or several ranks and it has no collectives, as one that was measured with one rank.
  Expected<Profile> withRanks(int64_t ranks) const;

  const std::string& name() const { return data_.name; }
  // Whether each rank has a device of its own. Otherwise the ranks share the cores of one machine.
  bool isOfGpus() const { return data_.cores == 0; }
  int64_t ranks() const { return data_.ranks; }
  int64_t ranksPerNode() const { return data_.ranksPerNode; }
  // Machines that so many ranks take.
  int64_t nodes(int64_t ranks) const { return (ranks + data_.ranksPerNode - 1) / data_.ranksPerNode; }
  // Machines that one group of the collective is spread over.
  int64_t nodes(const Transfer& transfer) const {
    return std::min(transfer.ranks, nodes(transfer.ranks * transfer.stride));
  }
  // Memory of one rank: its device's, or its share of the machine's.
  uint64_t memoryBytes() const {
    return data_.cores > 0 ? data_.memoryBytes / static_cast<uint64_t>(data_.ranks) : data_.memoryBytes;
  }
  // While a collective runs, computation runs at its usual rate divided by (1 + slowdown).
  double slowdown() const;
  // The same while collectives between nodes alone run, of one rank of each node.
  double networkSlowdown() const { return std::min(data_.networkSlowdown.value_or(slowdown()), slowdown()); }

  // Seconds of an instruction on one rank while all ranks compute. Element types without an entry cost as f32.
  double seconds(const Work& work) const;
  // Seconds of a collective from the arrival of the last rank. With one rank, the overhead of an instruction.
  double seconds(const Transfer& transfer) const;

  // Whether the profile says what a transfer between spaces costs. One between memories of ranks that share cores is a
  // copy, by their moves.
  bool knows(plan::Transfer::Kind kind) const;
  // Seconds of one on a rank while all ranks move as much, of a kind that the profile knows; else 0.
  double seconds(plan::Transfer::Kind kind, uint64_t bytes) const;
  // The part of the host memory's bandwidth that it uses meanwhile; 0 where that is not known.
  double hostLoad(plan::Transfer::Kind kind, uint64_t bytes) const;
  // Seconds in which the ranks make a step durable and vote on it; nothing where the profile does not say.
  std::optional<double> persistSeconds() const;
  // Bytes per second of a node's host memory, and elements per second that the host updates in it; 0: not known.
  double hostBandwidth() const { return data_.hostBandwidth; }
  double hostUpdates() const { return data_.hostUpdates; }
  // Whether the profile says what updates on the host cost. CPU ranks run them on one more thread, whose cost is known.
  bool knowsHostUpdates() const { return !isOfGpus() || data_.hostUpdates > 0; }
  // Seconds of such an update on a rank while all ranks of its node update as much.
  double hostUpdateSeconds(const Work& work) const;
  // The part of the host memory's bandwidth that they use together, 0 to 1.
  double hostUpdateLoad() const;
  // What transfers between memories, and what those of files of so many bytes, divide the rate of computation by,
  // less 1.
  double copySlowdown() const { return isOfGpus() ? 0 : slowdown(); }
  double fileSlowdown(uint64_t bytes) const;

  // The best rates of a rank while all ranks compute: seconds() never says that work takes less. 0: the profile has
  // none.
  double bestProductRate(plan::ElementType type, bool tf32) const;  // flop/s of products, attention, convolutions
  double bestMemoryBandwidth() const;                               // bytes/s of kernels and calls that move data
  double bestLinkBandwidth(int64_t ranks) const;  // bytes/s that a rank sends in a collective over so many ranks
  double bestNetworkBandwidth() const;            // bytes/s that a node's ranks together send to other nodes

 private:
  // The entry whose number of threads is nearest to that of a rank.
  const ComputeCost& compute() const;
  // Null if there is none.
  const TransferCost* costOf(plan::Transfer::Kind kind) const;
  // Threads of all ranks per core; at least 1.
  double share() const;
  // Calls visit(entry, scale) for the entries that fit best; their bandwidth is to be multiplied by `scale`.
  template <typename Visit>
  void forEachLink(const Transfer& transfer, Visit visit) const;
  double latencyOf(const LinkCost& link, const Transfer& transfer) const;
  double bandwidthOf(const LinkCost& link, const Transfer& transfer) const;
  // Of one rank between nodes, by a rank's share of the bytes.
  double networkShareOf(const LinkCost& link, double part) const;

  ProfileData data_;
};

}  // namespace sheaf::profile
