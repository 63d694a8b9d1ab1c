// sheaf init: fresh weights for a plan's parameters.
#include <cmath>
#include <numbers>

#include "runtime/base/Hash.h"
#include "runtime/base/Text.h"
#include "runtime/io/Safetensors.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Verify.h"
#include "tools/sheaf/Arguments.h"

namespace sheaf::tool {

static const char kHelp[] = R"(Makes weights for a plan whose graph has none.

usage: sheaf init OUT.plan --scheme normal:std=0.02 --seed 1 -o W.safetensors

Tensors of two and more dimensions are drawn by the scheme, vectors are one (scales) or, where the name ends in "bias",
zero. A weight depends on the seed and its own name alone.
)";

namespace {

// A standard normal variate from (key, index): Box and Muller's transform of two hashed uniforms.
float normal(uint64_t key, uint64_t index) {
  double u = (mixBits(key ^ mixBits(2 * index)) >> 11) * 0x1p-53,
         v = (mixBits(key ^ mixBits(2 * index + 1)) >> 11) * 0x1p-53;
  return float(std::sqrt(-2 * std::log1p(-u)) * std::cos(2 * std::numbers::pi * v));
}

Status parseScheme(const std::string& text, double& deviation) {
  const std::string prefix = "normal:std=";
  if (text.starts_with(prefix) && parseReal(text.substr(prefix.size()), deviation) && deviation >= 0) return {};
  return Status::error("--scheme " + text + ": expected normal:std=X with X of at least 0");
}

Status write(const plan::Plan& plan, double deviation, int64_t seed, const std::string& output) {
  std::vector<io::SafetensorsWriter::Entry> entries;
  for (const plan::Parameter& p : plan.parameters()) {
    // Files hold the named layout.
    std::vector<int64_t> shape(p.shape().begin(), p.shape().end());
    for (int i = 0; i < p.permutation_size(); ++i) shape[p.permutation(i)] = p.shape(i);
    entries.push_back({p.name(), io::DataType::F32, shape});
  }
  Expected<io::SafetensorsWriter> file = io::SafetensorsWriter::create(output, entries);
  if (!file.ok()) return file.status();
  std::vector<float> chunk;
  for (const auto& entry : entries) {
    uint64_t key = mixBits(uint64_t(seed)) ^ xxh64(entry.name), count = 1;
    for (int64_t d : entry.shape) count *= d;
    bool drawn = entry.shape.size() > 1;
    float constant = entry.name.ends_with("bias") ? 0 : 1;
    for (uint64_t at = 0; at < count; at += chunk.size()) {
      chunk.resize(std::min<uint64_t>(count - at, 1 << 16));
      for (uint64_t i = 0; i < chunk.size(); ++i) chunk[i] = drawn ? float(deviation) * normal(key, at + i) : constant;
      SHEAF_RETURN_IF_ERROR(file->write(std::as_bytes(std::span(chunk))));
    }
  }
  return file->commit();
}

}  // namespace

int initialize(const std::vector<std::string>& arguments) {
  std::string path, output;
  double deviation = 0.02;
  int64_t seed = 0;
  Arguments parser("init", "init OUT.plan -o W.safetensors");
  parser.positional("plan", path);
  parser.option("--scheme", [&](const std::string& text) { return parseScheme(text, deviation); });
  parser.option("--seed", seed, INT64_MIN, INT64_MAX);
  parser.option("-o", output);
  if (Status parsed = parser.parse(arguments); !parsed.ok()) return fail(parsed.message());
  if (parser.help) return help(kHelp);
  if (output.empty()) return fail("-o W.safetensors is missing: where are the weights to be written?");
  Expected<std::unique_ptr<plan::Plan>> plan = plan::readVerifiedPlan(path);
  if (!plan.ok()) return fail(plan.status().message());
  Status written = write(**plan, deviation, seed, output);
  return written.ok() ? 0 : fail(written.message());
}

}  // namespace sheaf::tool
