// sheaf init: fresh weights for a plan's parameters.
#include <cmath>
#include <limits>
#include <numbers>

#include "runtime/base/Hash.h"
#include "runtime/base/Text.h"
#include "runtime/base/WrittenPath.h"
#include "runtime/exec/Weights.h"
#include "runtime/io/Safetensors.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Verify.h"
#include "runtime/plan/Words.h"
#include "tools/sheaf/Command.h"
#include "tools/sheaf/PlanKinds.h"

namespace sheaf::tool {

namespace {

// A standard normal variate from (key, index): Box and Muller's transform of two hashed uniforms.
float normal(uint64_t key, uint64_t index) {
  double u = (mixBits(key ^ mixBits(2 * index)) >> 11) * 0x1p-53,
         v = (mixBits(key ^ mixBits(2 * index + 1)) >> 11) * 0x1p-53;
  return float(std::sqrt(-2 * std::log1p(-u)) * std::cos(2 * std::numbers::pi * v));
}

struct InitOptions {
  std::string plan, output;
  double deviation = 0.02;
  int64_t seed = 0;
};

// normal() returns no number farther from 0: sqrt(2 ln 2^53) = 8.572.
constexpr double kFarthest = 8.573;

// The standard deviation.
Expected<double> parseScheme(const std::string& text) {
  const std::string prefix = "normal:std=", expected = "expected normal:std=X with X of at least 0";
  double deviation = 0;
  if (!text.starts_with(prefix) || !parseReal(text.substr(prefix.size()), deviation) || deviation < 0)
    return Status::error(expected);
  if (const std::string problem = f32Problem(deviation); !problem.empty())
    return Status::error(cat(expected, "; ", deviation, " ", problem));
  return deviation;
}

// Refuses a deviation with which a weight may be beyond the type of its parameter.
Status checkRange(const plan::Parameter& parameter, double deviation) {
  const double largest = parameter.type() == plan::F16 ? 65504 : double{std::numeric_limits<float>::max()};
  if (parameter.shape_size() < 2 || deviation * kFarthest <= largest) return {};
  return Status::error(cat("--scheme normal:std=", deviation, ": weights of '", parameter.name(), "' may be beyond ",
                           plan::word(parameter.type()), ", whose largest number is ", largest,
                           "; give a std of at most ", std::floor(largest / kFarthest)));
}

Status write(const plan::Plan& plan, double deviation, int64_t seed, const std::string& output) {
  std::vector<io::SafetensorsWriter::Entry> entries;
  for (const plan::Parameter& p : plan.parameters()) {
    SHEAF_RETURN_IF_ERROR(checkRange(p, deviation));
    entries.push_back({p.name(), io::DataType::F32, exec::namedShape(p)});
  }
  for (const plan::Parameter& p : plan.copied())
    if (!p.constant() && io::convertible(io::DataType::F32, io::dataTypeOf(p.type())))
      entries.push_back({p.name(), io::DataType::F32, exec::namedShape(p)});
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

int initialize(InitOptions& o, const options::Given&) {
  Expected<std::unique_ptr<plan::Plan>> plan = plan::readVerifiedPlan(o.plan);
  if (!plan.ok()) return fail(plan.status().message());
  if (Status status = requireModel(**plan, o.plan); !status.ok()) return fail(status.message());
  if (Status written = write(**plan, o.deviation, o.seed, o.output); !written.ok()) return fail(written.message());
  note(cat("wrote ", writtenPath(o.output), ": initial weights; give them to `sheaf-run ", shellPath(o.plan),
           " --weights ", shellPath(o.output), "`"));
  return kDone;
}

}  // namespace

Command initCommand() {
  using O = InitOptions;
  using Row = options::Rows<O>;
  options::Table table{"sheaf init",
                       "Makes initial weights for a plan whose model has none.",
                       {"sheaf init OUT.plan -o W.safetensors [options]"},
                       Row::positional<&O::plan>("OUT.plan"),
                       {},
                       "Tensors of two and more dimensions are drawn by the scheme. Vectors are one (scales) or, where "
                       "the name ends in \"bias\", zero. A weight depends on the seed and its own name alone."};
  table.sections = {{"Options",
                     {Row::text<&O::output>("-o", "W.safetensors", "File for the weights.")
                          .writes({"safetensors"})
                          .required("where are the weights to be written?"),
                      Row::parsed<&O::deviation>("--scheme", "normal:std=X", "normal:std=X with X of at least 0",
                                                 "Distribution: normal, with standard deviation X.", parseScheme)
                          .defaultsTo("normal:std=0.02"),
                      Row::integer<&O::seed>("--seed", "S", INT64_MIN, INT64_MAX, "Seed of the random numbers.")}}};
  return command(std::move(table), initialize);
}

}  // namespace sheaf::tool
