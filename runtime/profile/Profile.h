// A machine as the cost model sees it: what a rank's instructions and the ranks' collectives take, in seconds. Profiles
// are JSON files; docs/simulator.md has the format, the formulas and where the figures of the shipped ones come from.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/Json.h"
#include "runtime/base/Status.h"
#include "runtime/profile/Work.h"

namespace sheaf::profile {

// A collective. `bytes`: the whole array that it is about, all ranks' parts together (of an all-reduce: one rank's).
struct Transfer {
  plan::CollectiveOp op = plan::ALL_GATHER;
  uint64_t bytes = 0;
  int64_t ranks = 1;
};

// A quantity by size: interpolated linearly over the logarithm of the size, constant outside of its points.
struct Curve {
  std::vector<std::pair<double, double>> points;  // (size, value), sizes increasing; at least one
  double at(double size) const;
  double highest() const;
};

// What a product of this shape took, over what the formula says.
struct GemmFactor {
  int64_t m, n, k;
  double factor;
};

// 2 batch (m n k + half_m n k + half_n m k + half_k m n) / rate seconds: with one of the sizes at its half value and
// the others large, a product runs at half the rate. The terms are what packing or loading operands and storing the
// result cost beside the multiplications; and half_results k, since a product with few results leaves most of a GPU
// idle. Then times a factor between those of the nearest of `shapes`, if there is one within twice or half its size.
struct GemmCost {
  plan::ElementType type = plan::F32;
  bool anyLayout = false;  // holds whatever is transposed
  bool transposeA = false, transposeB = false;
  bool tf32 = false;  // of f32 operands that may be rounded to TF32
  double rate = 0;    // flops a second of large products
  double halfM = 0, halfN = 0, halfK = 0, halfResults = 0;
  std::vector<GemmFactor> shapes;
  std::string source;
};

// flops / rate x ((1 + half_width / width) x (1 + half_keys / keys) + half_queries / queries of all heads and
// sequences) seconds; under a causal mask x (1 + block / keys), because tiles of scores are computed whole.
struct AttentionCost {
  plan::ElementType type = plan::F32;
  bool gradient = false;
  double rate = 0, halfWidth = 0, halfKeys = 0, halfQueries = 0, block = 0;
  std::string source;
};

// What a rank with so many threads computes at while its neighbours do the same.
struct ComputeCost {
  int64_t threads = 1;
  double overhead = 0;  // seconds an instruction
  std::string overheadSource;
  // A kernel takes bytes / kernels(bytes) or flops / operations seconds, whichever is more.
  Curve kernels;          // bytes a second by the bytes it moves
  double operations = 1;  // a second
  std::string kernelsSource;
  Curve moves;  // likewise of the library calls that move bytes
  std::string movesSource;
  std::vector<GemmCost> gemm;  // by type and layout
  double epilogues = 0;        // bytes a second of what their epilogues move; 0: that takes no time
  std::string epiloguesSource;
  std::vector<AttentionCost> attention;  // by type and direction
  double convolution = 1;                // rate of a convolution as a part of the rate of the product it unrolls to
  std::string convolutionSource;
};

// One way of running a collective over n ranks on d nodes: latency + hops + sent / bandwidth seconds. All-gather and
// reduce-scatter take (n - d) hops within nodes and (d - 1) between them and send (n - 1) / n of the bytes, all-reduce
// twice that (a ring; NCCL's own model). Of several ways the quickest is taken.
struct LinkCost {
  plan::CollectiveOp op = plan::COLLECTIVE_OP_UNSPECIFIED;  // unspecified: any
  int64_t ranks = 0;                                        // measured with so many; 0: holds for any number
  bool network = false;                                     // between nodes, otherwise within one
  double latency = 0, hop = 0, networkHop = 0;              // seconds
  Curve bandwidth;                                          // bytes a second by a rank's share of the bytes
  std::string source;
};

// An instruction on a rank that shares its cores with nobody.
double seconds(const ComputeCost& costs, const Work& work);

// What a profile's file holds.
struct ProfileData {
  std::string name, description;
  int64_t ranks = 1;
  int64_t ranksPerNode = 1;
  int64_t cores = 0;         // shared by the ranks; 0: each rank has a device of its own
  uint64_t memoryBytes = 0;  // of a rank's device, or of the machine whose cores the ranks share
  std::string memorySource;
  std::vector<ComputeCost> compute;  // by threads, increasing
  std::vector<LinkCost> links;
  double slowdown = 0;  // where every thread has a core of its own
  std::string slowdownSource;
};

class Profile {
 public:
  // Unchecked data: of a measurement, or of a file that has been checked.
  explicit Profile(ProfileData data) : data_(std::move(data)) {}
  // The text of a profile's file. An error begins with `place` and names the key and what it takes.
  static Expected<Profile> parse(std::string_view text, const std::string& place);
  json::Value toJson() const;

  // The same machine (or nodes of its kind) under another number of ranks. An error where nodes would have to be
  // connected and the profile knows no network.
  Expected<Profile> withRanks(int64_t ranks) const;

  const std::string& name() const { return data_.name; }
  // Whether each rank has a device of its own; else they share cores.
  bool isOfGpus() const { return data_.cores == 0; }
  int64_t ranks() const { return data_.ranks; }
  // Of one rank's device, or its part of the memory that ranks on shared cores share.
  uint64_t memoryBytes() const {
    return data_.cores > 0 ? data_.memoryBytes / static_cast<uint64_t>(data_.ranks) : data_.memoryBytes;
  }
  // While a collective runs, computation runs at its rate divided by 1 + slowdown.
  double slowdown() const;

  // An instruction on one rank while all ranks compute. Types that the profile does not have cost as f32.
  double seconds(const Work& work) const;
  // A collective, from the moment the last rank has arrived. That of one rank alone costs an instruction's overhead.
  double seconds(const Transfer& transfer) const;
  // The least latency and the highest rate, bytes of the whole array a second:
  // seconds(t) >= latency(t.op, t.ranks) + t.bytes / bandwidth(t.op, t.ranks) for transfers of any size.
  double latency(plan::CollectiveOp op, int64_t ranks) const;
  double bandwidth(plan::CollectiveOp op, int64_t ranks) const;

 private:
  int64_t nodes(int64_t ranks) const { return (ranks + data_.ranksPerNode - 1) / data_.ranksPerNode; }
  // Of ComputeCost's, the nearest to what a rank has.
  const ComputeCost& compute() const;
  // How many ranks' threads want each core; at least 1.
  double share() const;
  // Calls visit(way, scale): the ways that fit best, and what their bandwidth is to be multiplied by.
  template <typename Visit>
  void forEachWay(plan::CollectiveOp op, int64_t ranks, Visit visit) const;
  double wayLatency(const LinkCost& way, plan::CollectiveOp op, int64_t ranks) const;

  ProfileData data_;
};

}  // namespace sheaf::profile
