#include "runtime/plan/Digests.h"

#include <algorithm>
#include <string>

#include "runtime/base/Hash.h"
#include "runtime/base/Text.h"
#include "runtime/plan/Dataflow.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Words.h"

namespace sheaf::plan {
namespace {

using Hashes = std::vector<uint64_t>;

// Without maps and unknown fields a message has one wire format, in which fields of their default value are absent.
uint64_t hashOf(const google::protobuf::MessageLite& message) {
  return xxh64(message.SerializeAsString());
}

template <typename Table>
Hashes hashAll(const Table& table) {
  Hashes hashes;
  for (const auto& entry : table) hashes.push_back(hashOf(entry));
  return hashes;
}

Hashes trainingHash(const Plan& plan) {
  Training training = plan.training();
  training.clear_learning_rate();
  training.set_optimizer(withoutLearningRate(training.optimizer()));
  training.clear_schedule();
  for (ParameterGroup& group : *training.mutable_groups()) group.clear_learning_rate();
  return {hashOf(training)};
}

Hashes bucketHashes(const Plan& plan) {
  Hashes hashes;
  for (Bucket bucket : plan.buckets()) {
    bucket.clear_parameter_buffer();
    for (State& state : *bucket.mutable_states()) state.clear_buffer();
    bucket.set_gradient_type(gradientType(bucket));
    hashes.push_back(hashOf(bucket));
  }
  return hashes;
}

Hashes parameterHashes(const Plan& plan) {
  Hashes hashes;
  for (Parameter parameter : plan.parameters()) {
    parameter.set_source_type(sourceType(parameter));
    hashes.push_back(hashOf(parameter));
  }
  return hashes;
}

Hashes constantHashes(const Plan& plan) {
  Hashes hashes;
  for (const Constant& constant : plan.constants()) hashes.push_back(hashOf(constant.source()));
  return hashes;
}

Hashes imageHashes(const Plan& plan) {
  Hashes hashes;
  for (const KernelImage& image : plan.images()) {
    std::string text = cat(image.target(), '\0', image.cpu(), '\0', hexText(xxh64(image.code())));
    for (const std::string& feature : image.features()) text += cat('\0', feature);
    hashes.push_back(xxh64(text));
  }
  return hashes;
}

// The code of a kernel on a CPU reaches up to the next kernel's; on a GPU the symbol finds it, and the image's digest
// covers it.
Hashes kernelEntryHashes(const Plan& plan) {
  Hashes hashes;
  for (const KernelImage& image : plan.images()) {
    std::vector<uint64_t> offsets;
    for (const KernelEntry& entry : image.entries()) offsets.push_back(entry.offset());
    std::sort(offsets.begin(), offsets.end());
    for (int k = 0; k < image.entries_size(); ++k) {
      const KernelEntry& entry = image.entries(k);
      std::string text = cat(image.target(), '\0', k < plan.kernels_size() ? plan.kernels(k).symbol() : "", '\0',
                             entry.offset(), '\0', entry.grid(), '\0', entry.threads());
      if (deviceOf(image) != "cuda") {
        std::string_view code = image.code();
        auto next = std::upper_bound(offsets.begin(), offsets.end(), entry.offset());
        uint64_t begin = std::min<uint64_t>(entry.offset(), code.size());
        uint64_t end = next == offsets.end() ? code.size() : std::min<uint64_t>(*next, code.size());
        text += cat('\0', hexText(xxh64(code.substr(begin, end - begin))));
      }
      hashes.push_back(xxh64(text));
    }
  }
  return hashes;
}

std::string named(const char* kind, const std::string& name) {
  return cat(kind, " '", shortName(name), "'");
}

std::string kernelEntryName(const Plan& plan, int i) {
  const int kernels = std::max(plan.kernels_size(), 1), image = i / kernels;
  if (image >= plan.images_size() || plan.kernels_size() == 0) return "an entry of an image";
  return cat(named("kernel", plan.kernels(i % kernels).symbol()), " in ", named("image", plan.images(image).target()));
}

// What the digests of a table are computed from, and what an entry is called.
struct Table {
  std::string_view name;
  Hashes (*hashes)(const Plan&);
  std::string (*entry)(const Plan&, int);
};
constexpr Table kTables[] = {
    {"training", trainingHash, [](const Plan&, int) { return std::string("the training's settings"); }},
    {"scalars", [](const Plan& plan) { return hashAll(plan.scalars()); },
     [](const Plan& plan, int i) { return cat("step scalar ", i, " (", word(plan.scalars(i).kind()), ")"); }},
    {"inputs", [](const Plan& plan) { return hashAll(plan.inputs()); },
     [](const Plan& plan, int i) { return named("input", plan.inputs(i).name()); }},
    {"files", [](const Plan& plan) { return hashAll(plan.files()); },
     [](const Plan& plan, int i) { return named("file", plan.files(i).path()); }},
    {"buckets", bucketHashes, [](const Plan& plan, int i) { return named("bucket", plan.buckets(i).name()); }},
    {"parameters", parameterHashes,
     [](const Plan& plan, int i) { return named("parameter", plan.parameters(i).name()); }},
    {"constants", constantHashes, [](const Plan&, int i) { return cat("constant ", i); }},
    {"kernels", [](const Plan& plan) { return hashAll(plan.kernels()); },
     [](const Plan& plan, int i) { return named("kernel", plan.kernels(i).symbol()); }},
    {"kernel_entries", kernelEntryHashes, kernelEntryName},
    {"images", imageHashes, [](const Plan& plan, int i) { return named("image", plan.images(i).target()); }},
    {"floor", [](const Plan& plan) { return plan.has_floor() ? Hashes{hashOf(plan.floor())} : Hashes(); },
     [](const Plan&, int) { return std::string("the floor of a step's work"); }},
    {"outputs", [](const Plan& plan) { return hashAll(plan.outputs()); },
     [](const Plan& plan, int i) { return named("output", plan.outputs(i).name()); }},
    {"origin", [](const Plan& plan) { return plan.has_origin() ? Hashes{hashOf(plan.origin())} : Hashes(); },
     [](const Plan&, int) { return std::string("what the plan was compiled from"); }},
};
// Tables and kDigestTables have the same order; the last of the latter is `dataflow`.
static_assert(std::size(kTables) + 1 == std::size(kDigestTables));
static_assert(std::equal(std::begin(kTables), std::end(kTables), std::begin(kDigestTables),
                         [](const Table& table, const DigestTable& digests) { return table.name == digests.name; }));
constexpr const DigestTable& kDataflow = kDigestTables[std::size(kTables)];

constexpr const char* kRemedy = "; if the change is intended, `sheaf assemble --redigest` restates the digests";

// `name(i)` says what an entry is.
template <typename Name>
Status compare(std::string_view table, const DigestTable::List& stated, const Hashes& found, const char* wrong,
               Name name) {
  const int common = std::min(stated.size(), static_cast<int>(found.size()));
  for (int i = 0; i < common; ++i)
    if (stated[i] != found[static_cast<size_t>(i)])
      return Status::error(cat(name(i), " (table ", table, ", entry ", i, ") ", wrong, ": its digest is ",
                               hexText(found[static_cast<size_t>(i)]), ", the plan states ", hexText(stated[i]),
                               kRemedy));
  if (stated.size() == static_cast<int>(found.size())) return {};
  return Status::error(cat("table ", table, " is not what was compiled: it has ", found.size(),
                           " entries, the plan states digests of ", stated.size(), kRemedy));
}

void state(Plan& plan, const DigestTable& table, const Hashes& hashes) {
  (plan.mutable_digests()->*table.edit)()->Assign(hashes.begin(), hashes.end());
}

}  // namespace

void digestTables(Plan& plan) {
  for (size_t i = 0; i < std::size(kTables); ++i) state(plan, kDigestTables[i], kTables[i].hashes(plan));
}

void redigest(Plan& plan) {
  const std::string stated = plan.digests().SerializeAsString();
  digestTables(plan);
  state(plan, kDataflow, followDataflow(Places(plan)).digests);
  if (plan.digests().SerializeAsString() == stated) return;
  plan.clear_origin();
  plan.mutable_digests()->clear_origin();
}

Status checkTables(const Plan& plan) {
  for (size_t i = 0; i < std::size(kTables); ++i) {
    const DigestTable::List& stated = (plan.digests().*kDigestTables[i].get)();
    if (stated.empty()) continue;
    SHEAF_RETURN_IF_ERROR(compare(kTables[i].name, stated, kTables[i].hashes(plan), "is not what was compiled",
                                  [&](int entry) { return kTables[i].entry(plan, entry); }));
  }
  return {};
}

Status checkDataflow(const Plan& plan, const std::vector<uint64_t>& digests) {
  if (plan.digests().dataflow().empty()) return {};
  return compare(kDataflow.name, plan.digests().dataflow(), digests,
                 "is computed by other operations or from other bytes than when it was compiled",
                 [&](int entry) { return dataflowEntry(plan, entry); });
}

Status requireDigests(const Plan& plan) {
  std::vector<std::string> missing;
  for (size_t i = 0; i < std::size(kTables); ++i)
    if ((plan.digests().*kDigestTables[i].get)().empty() && !kTables[i].hashes(plan).empty())
      missing.push_back(kDigestTables[i].name);
  if (plan.digests().dataflow().empty()) missing.push_back(kDataflow.name);
  if (missing.empty()) return {};
  return Status::error(cat("the plan has no digests of its table", missing.size() > 1 ? "s " : " ",
                           listText(missing, std::size(kDigestTables)),
                           ", so it cannot be checked against what was compiled; compile the model again, or "
                           "state them with `sheaf assemble --redigest`"));
}

}  // namespace sheaf::plan
