#include <algorithm>
#include <cstdio>
#include <map>

#include "runtime/base/Print.h"
#include "runtime/base/Text.h"
#include "runtime/plan/LossScale.h"
#include "runtime/plan/MicroBatches.h"
#include "runtime/plan/SavedParts.h"
#include "runtime/plan/Schedules.h"
#include "runtime/plan/StepWork.h"
#include "runtime/plan/Summary.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Words.h"

namespace sheaf::plan {
namespace {

// The names of each group's parameters.
std::vector<std::vector<std::string>> membersOfGroups(const Plan& plan) {
  std::vector<std::vector<std::string>> members(static_cast<size_t>(plan.training().groups_size()));
  for (const Parameter& parameter : plan.parameters())
    if (const Bucket& bucket = plan.buckets(static_cast<int>(parameter.bucket())); bucket.trainable())
      if (bucket.group() < members.size()) members[bucket.group()].push_back(shownLine(parameter.name()));
  return members;
}

std::string groupsText(const Plan& plan) {
  std::string out;
  const std::vector<std::vector<std::string>> members = membersOfGroups(plan);
  for (size_t i = 0; i < members.size(); ++i) {
    const ParameterGroup& group = plan.training().groups(static_cast<int>(i));
    out += cat("  group       ", group.name(), ": ");
    if (group.has_learning_rate()) out += cat("learning rate ", group.learning_rate(), ", ");
    if (!group.settings().empty()) out += cat(group.settings(), ", ");
    out += counted(members[i].size(), "parameter");
    out += members[i].empty() ? "\n" : cat(": ", listText(members[i], 4), "\n");
  }
  return out;
}

json::Value groupsJson(const Plan& plan) {
  json::Array groups;
  const std::vector<std::vector<std::string>> members = membersOfGroups(plan);
  for (size_t i = 0; i < members.size(); ++i) {
    const ParameterGroup& group = plan.training().groups(static_cast<int>(i));
    const double rate = group.has_learning_rate() ? group.learning_rate() : plan.training().learning_rate();
    groups.push_back(json::Object{{"name", group.name()},
                                  {"settings", group.settings()},
                                  {"learning_rate", rate},
                                  {"parameters", json::Array(members[i].begin(), members[i].end())}});
  }
  return groups;
}

std::string padded(const std::string& text, size_t width, bool right = false) {
  std::string space(width > text.size() ? width - text.size() : 0, ' ');
  return right ? space + text : text + space;
}

// Collectives that are the same but for their bucket, as one line.
struct CommunicationLine {
  CollectiveOp op;
  Collective::Phase phase;
  Axis axis;
  uint64_t count = 0, bytes = 0;
};

std::vector<CommunicationLine> merged(const std::vector<Communication>& list) {
  std::vector<CommunicationLine> lines;
  for (const Communication& one : list) {
    auto same = [&](const CommunicationLine& line) {
      return line.op == one.op && line.phase == one.phase && line.axis == one.axis;
    };
    auto found = std::find_if(lines.begin(), lines.end(), same);
    if (found == lines.end()) found = lines.insert(lines.end(), {one.op, one.phase, one.axis, 0, 0});
    ++found->count;
    found->bytes += one.bytes;
  }
  return lines;
}

json::Value stepWorkJson(const StepWork& work) {
  json::Object products;
  for (const ProductFlops& one : work.products()) products.set(productWord(one), one.flops());
  return json::Object{{"products", std::move(products)},
                      {"state_bytes", work.state_bytes()},
                      {"reduced_bytes", work.reduced_bytes()},
                      {"gathered_bytes", work.gathered_bytes()}};
}

// What a rank sends in a step, by axis.
std::map<Axis, uint64_t> sentByAxis(const std::vector<Communication>& list) {
  std::map<Axis, uint64_t> sent{{WORLD, 0}, {NODE, 0}, {NETWORK, 0}};
  for (const Communication& one : list) sent[one.axis] += one.sent;
  return sent;
}

// What all ranks send to other nodes in a step.
uint64_t networkOf(const std::vector<Communication>& list) {
  uint64_t bytes = 0;
  for (const Communication& one : list) bytes += one.network;
  return bytes;
}

std::string transfersText(const Summary& summary) {
  if (summary.transfers.empty()) return "";
  std::string out = "\ntransfers per rank and step\n";
  for (const auto& [kind, moved] : summary.transfers)
    out += cat("  ", padded(std::to_string(moved.count), 4, true), " ", padded(word(kind), 15),
               padded(bytesText(moved.bytes), 10, true), "\n");
  if (summary.updatesOnHost > 0)
    out += cat("  ", summary.updatesOnHost, " of ", summary.updates, " buckets are updated on the host\n");
  return out;
}

json::Value spacesJson(const Summary& summary) {
  json::Object spaces;
  for (const auto& [space, memory] : summary.spaces) {
    json::Object byKind;
    for (const auto& [kind, bytes] : memory.byKind) byKind.set(word(kind), bytes);
    spaces.set(word(space), json::Object{{"peak_bytes", memory.peakBytes}, {"by_kind", std::move(byKind)}});
  }
  return spaces;
}

json::Value transfersJson(const Summary& summary) {
  json::Object transfers;
  for (const auto& [kind, moved] : summary.transfers)
    transfers.set(word(kind), json::Object{{"count", moved.count}, {"bytes", moved.bytes}});
  return transfers;
}

std::string nodesText(const Plan& plan) {
  if (plan.ranks_per_node() == 0) return "";
  return cat(" on ", counted(nodesOf(plan), "node"), " of ", plan.ranks_per_node());
}

std::string stageText(const Plan& plan) {
  if (plan.ranks_per_node() == 0 || plan.network_stage() == plan.zero_stage()) return std::to_string(plan.zero_stage());
  return cat(plan.zero_stage(), " within nodes and ", plan.network_stage(), " between them");
}

bool evaluatesOnly(const Plan& plan) {
  return plan.body_size() == 0 && plan.evaluation_size() > 0;
}

std::string microBatchesText(const Plan& plan) {
  if (microBatches(plan) < 2) return "";
  const MicroBatchGroups groups(microBatches(plan));
  return cat(" in ", microBatches(plan), " micro-batches, gradients reduced after ",
             plan.dealing() != BY_RANK ? "each"
             : groups.count > 1        ? cat("every ", groups.size())
                                       : "the last");
}

std::string stagesText(const Plan& plan, const Summary& summary) {
  std::string out = "\nstate per rank at each stage\n  stage  parameters   gradients   optimizer       total\n";
  auto line = [&](const std::string& stage, const StageNeeds& needs, bool own) {
    out += cat("  ", padded(stage, 5));
    for (uint64_t bytes : {needs.parameters, needs.gradients, needs.optimizer, needs.total()})
      out += padded(bytesText(bytes), 12, true);
    out += own ? "   <- this plan\n" : "\n";
  };
  const bool two = plan.ranks_per_node() > 0 && plan.network_stage() != plan.zero_stage();
  for (size_t stage = 0; stage < summary.stages.size(); ++stage)
    line(std::to_string(stage), summary.stages[stage], !two && stage == static_cast<size_t>(plan.zero_stage()));
  if (two) line(cat(plan.zero_stage(), ", ", plan.network_stage()), summary.own, true);
  return out;
}

// The floor next to what the instructions do.
std::string floorText(const Plan& plan, const Summary& summary) {
  if (evaluatesOnly(plan)) return "\nevaluation only: the plan has no training step\n";
  if (!summary.floor) return "\nthe plan states no floor: what a step of its model does at least\n";
  std::string out = "\nwork per rank and step: minimum of this model and stage, this plan\n";
  auto line = [&](const std::string& name, const std::string& least, const std::string& issued, uint64_t a,
                  uint64_t b) {
    char times[32] = "";
    if (a > 0) std::snprintf(times, sizeof times, "%8.2f x", static_cast<double>(b) / static_cast<double>(a));
    out += cat("  ", padded(name, 22), padded(least, 12, true), padded(issued, 14, true), times, "\n");
  };
  auto bytes = [&](const std::string& name, uint64_t a, uint64_t b) { line(name, bytesText(a), bytesText(b), a, b); };
  for (const ProductFlops& issued : summary.issued.products()) {
    const uint64_t least = flopsOf(*summary.floor, issued.type(), issued.tf32());
    line(cat(productWord(issued), " products"), flopsText(least), flopsText(issued.flops()), least, issued.flops());
  }
  bytes("state in updates", summary.floor->state_bytes(), summary.issued.state_bytes());
  if (plan.ranks() == 1) return out;
  bytes("reduced over ranks", summary.floor->reduced_bytes(), summary.issued.reduced_bytes());
  bytes("gathered from ranks", summary.floor->gathered_bytes(), summary.issued.gathered_bytes());
  return out;
}

std::string trainingText(const Plan& plan) {
  const Training& training = plan.training();
  std::string out = cat("  optimizer   ", training.optimizer(), "; learning rate ", training.learning_rate(), ", ",
                        scheduleText(training.schedule()), "\n", groupsText(plan));
  if (training.clip_norm() > 0) out += cat("  clipping    to a global norm of ", training.clip_norm(), "\n");
  const std::string after = training.on_nan() == Training::SKIP ? "the update is skipped\n" : "the run stops\n";
  if (!training.has_loss_scale()) return out + cat("  not finite  ", after);
  const LossScale& scale = training.loss_scale();
  out += cat("  loss scale  ", lossScaleText(scale), "\n");
  if (!isDynamic(scale)) return out + cat("  not finite  ", after);
  return out + cat("  not finite  the update is skipped and the scale reduced; at ", scale.floor(), " ", after);
}

// What was decided of many names alike is one line; of the rest so many lines. The schedule, with the predicted step,
// its bound and floor, is shown in any case.
std::string decisionsText(const Plan& plan) {
  constexpr size_t kAlike = 3, kLines = 24;
  auto whatOf = [](const std::string& decision) {
    return decision.substr(std::min(decision.find(": "), decision.size()));
  };
  std::map<std::string, size_t> alike;
  for (const std::string& decision : plan.decisions()) ++alike[whatOf(decision)];
  alike.erase("");
  std::string out;
  size_t lines = 0, hidden = 0;
  for (const std::string& decision : plan.decisions()) {
    const std::string what = whatOf(decision);
    const auto others = alike.find(what);
    if (others != alike.end() && others->second == 0) continue;  // said with the first one
    if (lines >= kLines && !decision.starts_with("schedule: ")) {
      ++hidden;
      continue;
    }
    ++lines;
    out += cat("  ", shownLine(decision.substr(0, decision.size() - what.size())));
    if (others != alike.end() && others->second > kAlike) {
      out += cat(" and ", others->second - 1, " more");
      others->second = 0;
    }
    out += cat(shownLine(what), "\n");
  }
  if (hidden > 0) out += cat("  and ", hidden, " more lines\n");
  if (!out.empty()) out = cat("\ndecisions; --format json has all\n", out);
  return out;
}

}  // namespace

std::string flopsText(uint64_t flops) {
  static constexpr const char* kUnits[] = {"", "K", "M", "G", "T", "P", "E"};
  double value = static_cast<double>(flops);
  size_t unit = 0;
  for (; value >= 1000; value /= 1000) ++unit;
  char text[32];
  std::snprintf(text, sizeof text, "%.*f %sflop",
                unit == 0 || value >= 100 ? 0
                : value < 10              ? 2
                                          : 1,
                value, kUnits[unit]);
  return text;
}

json::Value summaryJson(const Plan& plan) {
  Summary summary = summarize(plan);
  json::Object byKind;
  for (const auto& [kind, bytes] : summary.byKind) byKind.set(word(kind), bytes);
  const bool nodes = plan.ranks_per_node() > 0;
  json::Array communication, stages, inputs, outputs, decisions, buckets;
  for (const Communication& one : summary.communication) {
    json::Object entry{{"op", word(one.op)}, {"bucket", one.bucket}, {"bytes", one.bytes}, {"phase", word(one.phase)}};
    if (nodes) entry.set("axis", word(one.axis));
    communication.push_back(std::move(entry));
  }
  for (size_t stage = 0; stage < summary.stages.size(); ++stage)
    stages.push_back(json::Object{{"zero", static_cast<int64_t>(stage)},
                                  {word(PARAMETERS), summary.stages[stage].parameters},
                                  {word(GRADIENTS), summary.stages[stage].gradients},
                                  {word(OPTIMIZER), summary.stages[stage].optimizer},
                                  {"total", summary.stages[stage].total()}});
  for (const Input& input : plan.inputs())
    inputs.push_back(json::Object{{"name", input.name()},
                                  {"type", word(input.type())},
                                  {"shape", json::Array(input.shape().begin(), input.shape().end())}});
  for (const Output& output : plan.outputs())
    outputs.push_back(json::Object{{"name", output.name()},
                                   {"type", word(output.type())},
                                   {"shape", json::Array(output.shape().begin(), output.shape().end())}});
  for (const Bucket& bucket : plan.buckets())
    buckets.push_back(json::Object{{"name", bucket.name()},
                                   {"type", word(bucket.type())},
                                   {"elements", bucket.elements()},
                                   {"group", static_cast<int64_t>(bucket.group())},
                                   {"gradient_type", word(gradientType(bucket))},
                                   {"master", bucket.master()},
                                   {"trainable", bucket.trainable()}});
  for (const std::string& decision : plan.decisions()) decisions.push_back(decision);
  json::Object instructions;
  for (const Section& section : sectionsOf(plan)) instructions.set(std::string(section.name), section.list->size());
  const Training& training = plan.training();
  const bool scaled = training.has_loss_scale();
  json::Array turns;
  for (const Turn& turn : plan.turns())
    turns.push_back(json::Object{{"part", plan.parts(static_cast<int>(turn.part())).name()},
                                 {"micro_batch", static_cast<int64_t>(turn.micro_batch())}});
  json::Object sent;
  for (const auto& [axis, bytes] : sentByAxis(summary.communication)) sent.set(word(axis), bytes);
  json::Object root{{"producer", plan.producer()},
                    {"model", plan.model()},
                    {"ranks", plan.ranks()},
                    {"zero", static_cast<int64_t>(plan.zero_stage())},
                    {"batch", plan.batch()},
                    {"micro_batches", microBatches(plan)},
                    {"max_threads_per_rank", plan.max_threads()},
                    {"parameters", summary.parameters},
                    {"frozen_parameters", summary.frozenParameters},
                    {"optimizer", training.optimizer()},
                    {"schedule", scheduleText(training.schedule())},
                    {"groups", groupsJson(plan)},
                    {"loss_scale", scaled ? json::Value(lossScaleText(training.loss_scale())) : json::Value()},
                    {"inputs", std::move(inputs)},
                    {"outputs", std::move(outputs)},
                    {"memory", json::Object{{"peak_bytes", summary.peakBytes},
                                            {"library_bytes", summary.libraryBytes},
                                            {"by_kind", std::move(byKind)},
                                            {"spaces", spacesJson(summary)},
                                            {"save_staging_bytes", mostStagingBytes(plan)}}},
                    {"transfers", transfersJson(summary)},
                    {"updates", json::Object{{"buckets", summary.updates}, {"on_host", summary.updatesOnHost}}},
                    {"communication", std::move(communication)},
                    {"buckets", std::move(buckets)},
                    {"stages", std::move(stages)},
                    {"floor", summary.floor ? stepWorkJson(*summary.floor) : json::Value()},
                    {"issued", stepWorkJson(summary.issued)},
                    {"instructions", std::move(instructions)},
                    {"turns", std::move(turns)},
                    {"options", json::Array(plan.options().begin(), plan.options().end())},
                    {"decisions", std::move(decisions)}};
  if (nodes) {
    root.set("ranks_per_node", plan.ranks_per_node());
    root.set("network_zero", static_cast<int64_t>(plan.network_stage()));
    root.set("sent_bytes", std::move(sent));
    root.set("network_bytes", networkOf(summary.communication));
  }
  return root;
}

std::string divisionText(const Plan& plan) {
  return cat(counted(plan.ranks(), "rank"), nodesText(plan), ", ZeRO stage ", stageText(plan));
}

std::string summaryText(const Plan& plan) {
  Summary summary = summarize(plan);
  std::string out = cat(plan.model().empty() ? "plan" : plan.model(), ": ", divisionText(plan), ", global batch ",
                        plan.batch(), microBatchesText(plan), "\n");
  out += cat("  parameters  ", countText(summary.parameters), " trainable");
  if (summary.frozenParameters) out += cat(", ", countText(summary.frozenParameters), " frozen");
  out += cat(" in ", counted(plan.buckets_size(), "bucket"), "\n");
  auto mixed = std::find_if(plan.buckets().begin(), plan.buckets().end(), [](const Bucket& b) { return b.master(); });
  if (mixed != plan.buckets().end())
    out += cat("  precision   ", word(mixed->type()), " with f32 master weights; gradients are summed over ranks in ",
               word(gradientType(*mixed)), "\n");
  for (const Input& input : plan.inputs())
    if (isData(input))
      out += cat("  input       ", shownLine(input.name()), ": ", word(input.type()), " ", shapeText(shapeOf(input)),
                 input.whole() ? ", the same for all rows\n" : " per rank\n");
  for (const Output& output : plan.outputs())
    out += cat("  output      ", shownLine(output.name()), ": ", word(output.type()), " ", shapeText(shapeOf(output)),
               output.blocks() ? " per rank\n" : ", without rows\n");
  if (plan.evaluation_size() > 0)
    out += cat("  evaluation  ", counted(plan.evaluation_size(), "instruction"), " per batch\n");
  if (plan.body_size() > 0) out += trainingText(plan);

  out += cat("\nmemory per rank: ", bytesText(summary.peakBytes), " arena + at most ", bytesText(summary.libraryBytes),
             " in libraries; peak of each category:\n");
  for (const auto& [kind, bytes] : summary.byKind)
    out += cat("  ", padded(word(kind), 12), padded(bytesText(bytes), 10, true), "\n");

  for (const auto& [space, memory] : summary.spaces) {
    out += cat("in space ", word(space), ": ", bytesText(memory.peakBytes), "\n");
    for (const auto& [kind, bytes] : memory.byKind)
      out += cat("  ", padded(word(kind), 12), padded(bytesText(bytes), 10, true), "\n");
  }

  if (!evaluatesOnly(plan))
    out += cat("buffer of asynchronous saves (--save-staging auto): ", bytesText(mostStagingBytes(plan)),
               " of host memory per rank\n");

  if (!evaluatesOnly(plan)) out += stagesText(plan, summary);

  out += transfersText(summary);
  out += "\ncommunication per step";
  std::vector<CommunicationLine> lines = merged(summary.communication);
  out += lines.empty() ? ": none\n" : "\n";
  for (const CommunicationLine& line : lines)
    out += cat("  ", padded(std::to_string(line.count), 4, true), " ", padded(word(line.op), 15),
               padded(word(line.phase), 9), padded(bytesText(line.bytes), 10, true),
               plan.ranks_per_node() > 0 ? cat("  ", word(line.axis)) : "", "\n");
  if (plan.ranks_per_node() > 0) {
    out += "  each rank sends";
    for (const auto& [axis, bytes] : sentByAxis(summary.communication))
      out += cat(axis == WORLD ? " " : ", ", bytesText(bytes),
                 axis == NODE      ? " within its node"
                 : axis == NETWORK ? " between nodes"
                                   : " to all ranks");
    out += cat("; together they send ", bytesText(networkOf(summary.communication)), " over the network\n");
  }
  out += floorText(plan, summary);
  out += decisionsText(plan);
  return out;
}

}  // namespace sheaf::plan
