// Reads and writes profiles as JSON. The first fault in a file is an error that names the key and what it takes.
#include <algorithm>
#include <cmath>

#include "runtime/base/Text.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Words.h"
#include "runtime/profile/Profile.h"

namespace sheaf::profile {
namespace {

constexpr int64_t kFormat = 1;
constexpr int64_t kMaxRanks = plan::kMaxRanks;
// Times and rates beyond these limits are taken for mistakes of unit.
constexpr double kMaxSeconds = 3600, kLeastRate = 1, kMostRate = 1e21, kMostSize = 1e18, kMaxProductSize = 1e12;
constexpr size_t kMaxEntries = 4096;

constexpr const auto& kTypes = plan::kTypesAmong<&plan::ElementFacts::isFloatInPlans>;
const char* const kLayouts[] = {"nn", "nt", "tn", "tt"};  // op(a), op(b); n: as it is, t: transposed
const char* const kAnyOp = "any";

json::Value pairsOf(const Curve& curve) {
  json::Array points;
  for (const auto& [size, value] : curve.points) points.push_back(json::Array{size, value});
  return points;
}

}  // namespace

// Keeps the first fault. Values read after it are still in range.
class ProfileReader {
 public:
  explicit ProfileReader(std::string place) : place_(std::move(place)) {}

  Expected<Profile> read(const json::Value& value) {
    ProfileData p;
    const json::Object* root = object(value, "the profile");
    if (root) readRoot(*root, p);
    if (!status_.ok()) return status_;
    return Profile(std::move(p));
  }

 private:
  void fail(const std::string& key, const std::string& what) {
    if (status_.ok()) status_ = Status::error(cat(place_, ": ", key, ": ", what));
  }

  const json::Object* object(const json::Value& value, const std::string& key) {
    if (!value.object()) fail(key, "expected an object {...}");
    return value.object();
  }
  const json::Object* member(const json::Object& from, const std::string& key, const char* name) {
    const json::Value* value = from.find(name);
    if (!value) return fail(path(key, name), "is missing"), nullptr;
    return object(*value, path(key, name));
  }
  static std::string path(const std::string& key, const std::string& name) {
    return key.empty() ? name : key + "." + name;
  }

  void onlyKeys(const json::Object& from, const std::string& key, const std::vector<std::string>& known) {
    for (const auto& [name, value] : from.members()) {
      if (std::find(known.begin(), known.end(), name) != known.end()) continue;
      const std::string near = nearest(name, known);
      fail(path(key, name), near.empty() ? cat("unknown key; known are ", listText(known, known.size()))
                                         : cat("unknown key; did you mean ", near, "?"));
    }
  }

  double inRange(const json::Value& value, const std::string& key, double low, double high) {
    double number = low;
    if (!value.number(number) || !(number >= low && number <= high)) {
      fail(key, cat("expected a number from ", low, " to ", high));
      return low;
    }
    return number;
  }
  double number(const json::Object& from, const std::string& key, const char* name, double low, double high) {
    const json::Value* value = from.find(name);
    if (!value) return fail(path(key, name), cat("is missing; expected a number from ", low, " to ", high)), low;
    return inRange(*value, path(key, name), low, high);
  }
  double numberOr(const json::Object& from, const std::string& key, const char* name, double low, double high,
                  double otherwise) {
    return from.find(name) ? number(from, key, name, low, high) : otherwise;
  }
  int64_t integer(const json::Object& from, const std::string& key, const char* name, int64_t low, int64_t high) {
    const json::Value* value = from.find(name);
    const int64_t* found = value ? value->integer() : nullptr;
    if (found && *found >= low && *found <= high) return *found;
    fail(path(key, name), cat(value ? "" : "is missing; ", "expected an integer from ", low, " to ", high));
    return low;
  }
  int64_t integerOr(const json::Object& from, const std::string& key, const char* name, int64_t low, int64_t high,
                    int64_t otherwise) {
    return from.find(name) ? integer(from, key, name, low, high) : otherwise;
  }
  std::string text(const json::Object& from, const std::string& key, const char* name) {
    const json::Value* value = from.find(name);
    if (value && value->string()) return *value->string();
    fail(path(key, name), value ? "expected a string" : "is missing; expected a string");
    return "";
  }
  bool flagOr(const json::Object& from, const std::string& key, const char* name, bool otherwise) {
    const json::Value* value = from.find(name);
    if (value && !value->boolean()) fail(path(key, name), "expected true or false");
    return value && value->boolean() ? *value->boolean() : otherwise;
  }
  // The index of a string among those allowed; 0 after a fault.
  size_t choice(const json::Object& from, const std::string& key, const char* name,
                const std::vector<std::string>& allowed) {
    const std::string found = text(from, key, name);
    auto at = std::find(allowed.begin(), allowed.end(), found);
    if (at != allowed.end()) return static_cast<size_t>(at - allowed.begin());
    fail(path(key, name), cat("'", found, "' is not one of ", listText(allowed, allowed.size())));
    return 0;
  }
  plan::ElementType type(const json::Object& from, const std::string& key) {
    std::vector<std::string> names;
    for (plan::ElementType t : kTypes) names.push_back(plan::word(t));
    return kTypes[choice(from, key, "type", names)];
  }

  // What a curve's values are, and their range.
  struct Values {
    const char* words;
    double low, high;
  };
  static constexpr Values kBandwidth{"bytes a second", kLeastRate, kMostRate};

  // A number, or pairs of a size and the value there.
  Curve curve(const json::Object& from, const std::string& key, const char* name, const Values& values = kBandwidth) {
    const std::string where = path(key, name);
    const json::Value* value = from.find(name);
    Curve curve{{{1, 1}}};
    const std::string expected = cat("expected ", values.words, ", or pairs [bytes, ", values.words, "]");
    if (!value) return fail(where, "is missing; " + expected), curve;
    double single;
    if (value->number(single)) {
      curve.points = {{1, inRange(*value, where, values.low, values.high)}};
      return curve;
    }
    const json::Array* pairs = value->array();
    if (!pairs || pairs->empty() || pairs->size() > kMaxEntries) return fail(where, expected), curve;
    curve.points.clear();
    for (size_t i = 0; i < pairs->size(); ++i) {
      const std::string at = cat(where, "[", i, "]");
      const json::Array* pair = (*pairs)[i].array();
      if (!pair || pair->size() != 2)
        return fail(at, cat("expected a pair [bytes, ", values.words, "]")), Curve{{{1, 1}}};
      curve.points.emplace_back(inRange((*pair)[0], at + "[0]", 1, kMostSize),
                                inRange((*pair)[1], at + "[1]", values.low, values.high));
      if (i > 0 && !(curve.points[i].first > curve.points[i - 1].first))
        fail(at, "sizes must increase from pair to pair");
    }
    return curve;
  }

  // [m, n, k, factor] each.
  std::vector<GemmFactor> factors(const json::Object& from, const std::string& where) {
    constexpr double kMostFactor = 1e3;
    const json::Array* entries = from.find("shapes")->array();
    std::vector<GemmFactor> factors;
    if (!entries || entries->size() > kMaxEntries) return fail(where, "expected a list of [m, n, k, factor]"), factors;
    for (size_t i = 0; i < entries->size(); ++i) {
      const std::string at = cat(where, "[", i, "]");
      const json::Array* entry = (*entries)[i].array();
      if (!entry || entry->size() != 4) return fail(at, "expected [m, n, k, factor]"), factors;
      int64_t sizes[3];
      for (size_t j = 0; j < 3; ++j)
        sizes[j] = static_cast<int64_t>(inRange((*entry)[j], cat(at, "[", j, "]"), 1, kMaxProductSize));
      factors.push_back({sizes[0], sizes[1], sizes[2], inRange((*entry)[3], at + "[3]", 1 / kMostFactor, kMostFactor)});
    }
    return factors;
  }

  // Calls read(entry, key) for every object of a list.
  template <typename Read>
  void list(const json::Object& from, const std::string& key, const char* name, Read read) {
    const std::string where = path(key, name);
    const json::Value* value = from.find(name);
    const json::Array* entries = value ? value->array() : nullptr;
    if (!entries || entries->empty() || entries->size() > kMaxEntries)
      return fail(where, cat(value ? "" : "is missing; ", "expected a list of 1 to ", kMaxEntries, " objects"));
    for (size_t i = 0; i < entries->size() && status_.ok(); ++i) {
      const std::string at = cat(where, "[", i, "]");
      if (const json::Object* entry = object((*entries)[i], at)) read(*entry, at);
    }
  }

  void readRoot(const json::Object& root, ProfileData& p) {
    onlyKeys(root, "",
             {"sheaf_profile", "name", "description", "ranks", "ranks_per_node", "cores", "memory", "compute",
              "collectives", "slowdown", "transfers", "persist", "host_memory", "host_updates"});
    if (integer(root, "", "sheaf_profile", 0, INT64_MAX) != kFormat)
      fail("sheaf_profile", cat("this version reads profiles of format ", kFormat, "; `sheaf profile` makes one"));
    p.name = text(root, "", "name");
    p.description = root.find("description") ? text(root, "", "description") : "";
    // A type of machine has no number of ranks of its own: it counts as one node until withRanks().
    const bool isType = !root.find("ranks") && root.find("ranks_per_node");
    p.ranks = integer(root, "", isType ? "ranks_per_node" : "ranks", 1, kMaxRanks);
    p.cores = integerOr(root, "", "cores", 1, kMaxRanks, 0);
    // Ranks that share the cores of a machine are all on one node, unless they are divided among processes.
    p.ranksPerNode = integerOr(root, "", "ranks_per_node", 1, kMaxRanks, p.cores > 0 ? kMaxRanks : p.ranks);
    if (const json::Object* memory = member(root, "", "memory")) {
      onlyKeys(*memory, "memory", {"bytes", "source"});
      p.memoryBytes = static_cast<uint64_t>(integer(*memory, "memory", "bytes", 1, int64_t{1} << 60));
      p.memorySource = text(*memory, "memory", "source");
    }
    list(root, "", "compute", [&](const json::Object& entry, const std::string& key) {
      p.compute.push_back(computeCost(entry, key));
      if (p.cores == 0 && !p.compute.back().fileSlowdown.points.empty())
        fail(key + ".files", "is of ranks that share cores; a GPU computes while the host transfers files");
      const size_t n = p.compute.size();
      if (n > 1 && p.compute[n - 1].threads <= p.compute[n - 2].threads)
        fail(key + ".threads", "numbers of threads must increase from entry to entry");
    });
    // A single rank needs no collectives: see withRanks().
    if (p.ranks > 1 || root.find("collectives"))
      list(root, "", "collectives",
           [&](const json::Object& entry, const std::string& key) { p.links.push_back(linkCost(entry, key)); });
    checkLinks(p);
    if (const json::Object* slowdown = member(root, "", "slowdown")) {
      onlyKeys(*slowdown, "slowdown", {"value", "network", "source"});
      p.slowdown = number(*slowdown, "slowdown", "value", 0, 1e6);
      if (slowdown->find("network")) p.networkSlowdown = number(*slowdown, "slowdown", "network", 0, 1e6);
      p.slowdownSource = text(*slowdown, "slowdown", "source");
    }
    if (root.find("transfers"))
      list(root, "", "transfers", [&](const json::Object& entry, const std::string& key) {
        p.transfers.push_back(transferCost(entry, key));
        for (size_t i = 0; i + 1 < p.transfers.size(); ++i)
          if (p.transfers[i].kind == p.transfers.back().kind) fail(key + ".kind", "there are two entries of this kind");
      });
    if (root.find("persist"))
      if (const json::Object* persist = member(root, "", "persist")) {
        onlyKeys(*persist, "persist", {"seconds", "source"});
        p.persist =
            PersistCost{number(*persist, "persist", "seconds", 0, kMaxSeconds), text(*persist, "persist", "source")};
      }
    if (root.find("host_memory"))
      if (const json::Object* host = member(root, "", "host_memory")) {
        onlyKeys(*host, "host_memory", {"bandwidth", "source"});
        p.hostBandwidth = number(*host, "host_memory", "bandwidth", kLeastRate, kMostRate);
        p.hostSource = text(*host, "host_memory", "source");
      }
    if (root.find("host_updates"))
      if (const json::Object* updates = member(root, "", "host_updates")) {
        onlyKeys(*updates, "host_updates", {"rate", "source"});
        p.hostUpdates = number(*updates, "host_updates", "rate", kLeastRate, kMostRate);
        p.hostUpdatesSource = text(*updates, "host_updates", "source");
      }
  }

  TransferCost transferCost(const json::Object& entry, const std::string& key) {
    onlyKeys(entry, key, {"kind", "latency", "bandwidth", "at_once", "source"});
    TransferCost cost;
    const std::vector<std::string> kinds = plan::words<plan::Transfer::Kind>();
    cost.kind = *plan::valueOf<plan::Transfer::Kind>(kinds[choice(entry, key, "kind", kinds)]);
    cost.latency = number(entry, key, "latency", 0, kMaxSeconds);
    cost.bandwidth = curve(entry, key, "bandwidth");
    if (entry.find("at_once"))
      if (const json::Object* atOnce = member(entry, key, "at_once")) {
        const std::string at = key + ".at_once";
        onlyKeys(*atOnce, at, {"ranks", "times"});
        if (cost.kind != plan::Transfer::READ_FILE && cost.kind != plan::Transfer::WRITE_FILE)
          fail(at, "is of files; a device's transfers are a rank's own");
        cost.atOnce.ranks = integer(*atOnce, at, "ranks", 2, kMaxRanks);
        cost.atOnce.times = number(*atOnce, at, "times", 1, static_cast<double>(cost.atOnce.ranks));
      }
    cost.source = text(entry, key, "source");
    return cost;
  }

  ComputeCost computeCost(const json::Object& entry, const std::string& key) {
    ComputeCost cost;
    onlyKeys(entry, key,
             {"threads", "overhead", "kernels", "moves", "gemm", "epilogues", "attention", "convolution", "files"});
    cost.threads = integerOr(entry, key, "threads", 1, kMaxRanks, 1);
    if (const json::Object* overhead = member(entry, key, "overhead")) {
      const std::string at = key + ".overhead";
      onlyKeys(*overhead, at, {"seconds", "source"});
      cost.overhead = number(*overhead, at, "seconds", 0, kMaxSeconds);
      cost.overheadSource = text(*overhead, at, "source");
    }
    cost.kernels = cost.moves = Curve{{{1, 1}}};
    if (const json::Object* kernels = member(entry, key, "kernels")) {
      const std::string at = key + ".kernels";
      onlyKeys(*kernels, at, {"bandwidth", "operations", "source"});
      cost.kernels = curve(*kernels, at, "bandwidth");
      cost.operations = number(*kernels, at, "operations", kLeastRate, kMostRate);
      cost.kernelsSource = text(*kernels, at, "source");
    }
    if (const json::Object* moves = member(entry, key, "moves")) {
      const std::string at = key + ".moves";
      onlyKeys(*moves, at, {"bandwidth", "source"});
      cost.moves = curve(*moves, at, "bandwidth");
      cost.movesSource = text(*moves, at, "source");
    }
    list(entry, key, "gemm", [&](const json::Object& from, const std::string& at) {
      onlyKeys(from, at, {"type", "tf32", "layout", "rate", "half", "half_results", "shapes", "source"});
      GemmCost gemm;
      gemm.type = type(from, at);
      gemm.tf32 = flagOr(from, at, "tf32", false);
      gemm.anyLayout = !from.find("layout");
      const size_t layout = gemm.anyLayout ? 0 : choice(from, at, "layout", {std::begin(kLayouts), std::end(kLayouts)});
      gemm.transposeA = layout >= 2, gemm.transposeB = layout % 2 == 1;
      gemm.rate = number(from, at, "rate", kLeastRate, kMostRate);
      const json::Value* half = from.find("half");
      if (half && half->array() && half->array()->size() == 3) {
        double* const into[] = {&gemm.halfM, &gemm.halfN, &gemm.halfK};
        for (size_t i = 0; i < 3; ++i) *into[i] = inRange((*half->array())[i], cat(at, ".half[", i, "]"), 0, kMostSize);
      } else {
        fail(at + ".half", "expected three numbers, for m, n and k");
      }
      gemm.halfResults = numberOr(from, at, "half_results", 0, kMostSize, 0);
      if (from.find("shapes")) gemm.shapes = factors(from, at + ".shapes");
      gemm.source = text(from, at, "source");
      cost.gemm.push_back(gemm);
    });
    if (entry.find("epilogues"))
      if (const json::Object* epilogues = member(entry, key, "epilogues")) {
        const std::string at = key + ".epilogues";
        onlyKeys(*epilogues, at, {"bandwidth", "source"});
        cost.epilogues = number(*epilogues, at, "bandwidth", kLeastRate, kMostRate);
        cost.epiloguesSource = text(*epilogues, at, "source");
      }
    list(entry, key, "attention", [&](const json::Object& from, const std::string& at) {
      onlyKeys(from, at, {"type", "gradient", "rate", "half_width", "half_keys", "half_queries", "block", "source"});
      AttentionCost attention;
      attention.type = type(from, at);
      attention.gradient = flagOr(from, at, "gradient", false);
      attention.rate = number(from, at, "rate", kLeastRate, kMostRate);
      attention.halfWidth = numberOr(from, at, "half_width", 0, kMostSize, 0);
      attention.halfKeys = numberOr(from, at, "half_keys", 0, kMostSize, 0);
      attention.halfQueries = numberOr(from, at, "half_queries", 0, kMostSize, 0);
      attention.block = numberOr(from, at, "block", 0, kMostSize, 0);
      attention.source = text(from, at, "source");
      cost.attention.push_back(attention);
    });
    if (const json::Object* convolution = member(entry, key, "convolution")) {
      const std::string at = key + ".convolution";
      onlyKeys(*convolution, at, {"part", "source"});
      cost.convolution = number(*convolution, at, "part", 1e-6, 1e6);
      cost.convolutionSource = text(*convolution, at, "source");
    }
    if (entry.find("files"))
      if (const json::Object* files = member(entry, key, "files")) {
        const std::string at = key + ".files";
        onlyKeys(*files, at, {"slowdown", "source"});
        cost.fileSlowdown = curve(*files, at, "slowdown", {"a slowdown", 0, 1e6});
        cost.fileSlowdownSource = text(*files, at, "source");
      }
    return cost;
  }

  LinkCost linkCost(const json::Object& from, const std::string& at) {
    onlyKeys(from, at,
             {"op", "ranks", "network", "latency", "hop", "network_hop", "bandwidth", "network_share", "source"});
    LinkCost link;
    std::vector<std::string> ops{kAnyOp};
    for (int op = plan::ALL_GATHER; op <= plan::ALL_REDUCE; ++op)
      ops.push_back(plan::word(static_cast<plan::CollectiveOp>(op)));
    link.op = static_cast<plan::CollectiveOp>(choice(from, at, "op", ops));
    link.ranks = integerOr(from, at, "ranks", 2, kMaxRanks, 0);
    link.network = flagOr(from, at, "network", false);
    link.latency = number(from, at, "latency", 0, kMaxSeconds);
    link.hop = numberOr(from, at, "hop", 0, kMaxSeconds, 0);
    link.networkHop = numberOr(from, at, "network_hop", 0, kMaxSeconds, 0);
    link.bandwidth = curve(from, at, "bandwidth");
    if (from.find("network_share")) link.networkShare = curve(from, at, "network_share");
    if (from.find("network_share") && !link.network)
      fail(at + ".network_share", "is of collectives between nodes, whose entries have \"network\": true");
    link.source = text(from, at, "source");
    return link;
  }

  // Every collective needs an entry within a node of several ranks and, with several nodes, one between nodes.
  void checkLinks(const ProfileData& p) {
    if (p.ranks == 1 && p.links.empty()) return;
    const bool network = std::any_of(p.links.begin(), p.links.end(), [](const LinkCost& l) { return l.network; });
    if (p.ranks > p.ranksPerNode && !network)
      fail("collectives", cat(p.ranks, " ranks, ", p.ranksPerNode, " a node, need an entry with \"network\": true"));
    for (int spans = p.ranksPerNode > 1 ? 0 : 1; spans <= (network ? 1 : 0); ++spans)
      for (int op = plan::ALL_GATHER; op <= plan::ALL_REDUCE; ++op)
        if (std::none_of(p.links.begin(), p.links.end(), [&](const LinkCost& link) {
              return link.network == (spans == 1) && (link.op == op || link.op == plan::COLLECTIVE_OP_UNSPECIFIED);
            }))
          fail("collectives", cat("no entry for ", plan::word(static_cast<plan::CollectiveOp>(op)),
                                  spans ? " between nodes" : " within a node", "; \"op\": \"any\" covers all"));
    // A ring over all ranks of several nodes leaves each node by that node's network.
    constexpr double kRounded = 1e-3;
    for (size_t i = 0; i < p.links.size(); ++i)
      for (const auto& [size, share] : p.links[i].networkShare.points)
        if (share * static_cast<double>(p.ranksPerNode) < p.links[i].bandwidth.at(size) * (1 - kRounded))
          fail(
              cat("collectives[", i, "].network_share"),
              cat("the ", p.ranksPerNode, " ranks of a node would send ", share * static_cast<double>(p.ranksPerNode),
                  " bytes a second together, less than the bandwidth over all nodes, ", p.links[i].bandwidth.at(size)));
  }

  const std::string place_;
  Status status_;
};

Expected<Profile> Profile::parse(std::string_view text, const std::string& place) {
  Expected<json::Value> value = json::parse(text);
  if (!value.ok()) return Status::error(cat(place, ": ", value.status().message(), "; a profile is a JSON object"));
  return ProfileReader(place).read(*value);
}

json::Value Profile::toJson() const {
  json::Object root{
      {"sheaf_profile", kFormat}, {"name", data_.name}, {"description", data_.description}, {"ranks", data_.ranks}};
  if (data_.cores > 0) root.set("cores", data_.cores);
  if (data_.cores == 0 || data_.ranksPerNode < kMaxRanks) root.set("ranks_per_node", data_.ranksPerNode);
  root.set("memory", json::Object{{"bytes", data_.memoryBytes}, {"source", data_.memorySource}});
  json::Array compute, collectives;
  for (const ComputeCost& cost : data_.compute) {
    json::Array gemm, attention;
    for (const GemmCost& g : cost.gemm) {
      json::Object entry{{"type", plan::word(g.type)}};
      if (g.tf32) entry.set("tf32", true);
      if (!g.anyLayout) entry.set("layout", kLayouts[2 * g.transposeA + g.transposeB]);
      entry.set("rate", g.rate);
      entry.set("half", json::Array{g.halfM, g.halfN, g.halfK});
      if (g.halfResults > 0) entry.set("half_results", g.halfResults);
      if (!g.shapes.empty()) {
        json::Array shapes;
        for (const GemmFactor& f : g.shapes) shapes.push_back(json::Array{f.m, f.n, f.k, f.factor});
        entry.set("shapes", std::move(shapes));
      }
      entry.set("source", g.source);
      gemm.push_back(std::move(entry));
    }
    for (const AttentionCost& a : cost.attention) {
      json::Object entry{{"type", plan::word(a.type)}, {"gradient", a.gradient},  {"rate", a.rate},
                         {"half_width", a.halfWidth},  {"half_keys", a.halfKeys}, {"block", a.block},
                         {"source", a.source}};
      if (a.halfQueries > 0) entry.set("half_queries", a.halfQueries);
      attention.push_back(std::move(entry));
    }
    json::Object written{{"threads", cost.threads},
                         {"overhead", json::Object{{"seconds", cost.overhead}, {"source", cost.overheadSource}}},
                         {"kernels", json::Object{{"bandwidth", pairsOf(cost.kernels)},
                                                  {"operations", cost.operations},
                                                  {"source", cost.kernelsSource}}},
                         {"moves", json::Object{{"bandwidth", pairsOf(cost.moves)}, {"source", cost.movesSource}}},
                         {"gemm", std::move(gemm)},
                         {"attention", std::move(attention)},
                         {"convolution", json::Object{{"part", cost.convolution}, {"source", cost.convolutionSource}}}};
    if (cost.epilogues > 0)
      written.set("epilogues", json::Object{{"bandwidth", cost.epilogues}, {"source", cost.epiloguesSource}});
    if (!cost.fileSlowdown.points.empty())
      written.set("files", json::Object{{"slowdown", pairsOf(cost.fileSlowdown)}, {"source", cost.fileSlowdownSource}});
    compute.push_back(std::move(written));
  }
  for (const LinkCost& link : data_.links) {
    json::Object entry{{"op", link.op == plan::COLLECTIVE_OP_UNSPECIFIED ? kAnyOp : plan::word(link.op)}};
    if (link.ranks > 0) entry.set("ranks", link.ranks);
    if (link.network) entry.set("network", true);
    entry.set("latency", link.latency);
    if (link.hop > 0) entry.set("hop", link.hop);
    if (link.networkHop > 0) entry.set("network_hop", link.networkHop);
    entry.set("bandwidth", pairsOf(link.bandwidth));
    if (!link.networkShare.points.empty()) entry.set("network_share", pairsOf(link.networkShare));
    entry.set("source", link.source);
    collectives.push_back(std::move(entry));
  }
  root.set("compute", std::move(compute));
  if (!data_.links.empty()) root.set("collectives", std::move(collectives));
  json::Object slowdown{{"value", data_.slowdown}, {"source", data_.slowdownSource}};
  if (data_.networkSlowdown) slowdown.set("network", *data_.networkSlowdown);
  root.set("slowdown", std::move(slowdown));
  json::Array transfers;
  for (const TransferCost& cost : data_.transfers) {
    json::Object entry{
        {"kind", plan::word(cost.kind)}, {"latency", cost.latency}, {"bandwidth", pairsOf(cost.bandwidth)}};
    if (cost.atOnce.ranks > 1)
      entry.set("at_once", json::Object{{"ranks", cost.atOnce.ranks}, {"times", cost.atOnce.times}});
    entry.set("source", cost.source);
    transfers.push_back(std::move(entry));
  }
  if (!transfers.empty()) root.set("transfers", std::move(transfers));
  if (data_.persist)
    root.set("persist", json::Object{{"seconds", data_.persist->seconds}, {"source", data_.persist->source}});
  if (data_.hostBandwidth > 0)
    root.set("host_memory", json::Object{{"bandwidth", data_.hostBandwidth}, {"source", data_.hostSource}});
  if (data_.hostUpdates > 0)
    root.set("host_updates", json::Object{{"rate", data_.hostUpdates}, {"source", data_.hostUpdatesSource}});
  return root;
}

}  // namespace sheaf::profile
