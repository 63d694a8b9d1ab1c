// sheaf simulate: what a plan's step takes on a machine, without the machine.
#include <algorithm>
#include <cstdio>
#include <map>

#include "passes/schedule/ShippedProfiles.h"
#include "runtime/base/Print.h"
#include "runtime/base/Text.h"
#include "runtime/io/ChromeTrace.h"
#include "runtime/io/PerfettoTrace.h"
#include "runtime/plan/Proof.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Words.h"
#include "tools/sheaf/Command.h"
#include "tools/sheaf/Lifetimes.h"
#include "tools/sheaf/Links.h"
#include "tools/sheaf/PlanKinds.h"
#include "tools/sheaf/Simulation.h"

namespace sheaf::tool {

namespace {

using namespace schedule;

// What is printed of a step besides.
struct Result {
  Simulation simulation;
  std::map<std::string, double> parts;  // seconds by kind of instruction
  Baselines baselines;
  Resources resources;
  Wear wear;
};

// Limits are in bytes of a rank; 0: none, and for the device the machine's.
Expected<Result> resultOf(const plan::Plan& plan, const profile::Profile& machine, uint64_t limit, uint64_t host,
                          uint64_t file) {
  Expected<Simulation> simulation = simulate(plan, machine, limit);
  if (!simulation.ok()) return simulation.status();
  Result result{std::move(*simulation), {}, {}, {}, {}};
  const PlanLoop& loop = result.simulation.loop;
  const std::vector<const plan::Instruction*> step = plan::stepInstructions(plan);
  for (size_t op = 0; op < loop.instructions.size(); ++op)
    result.parts[plan::instructionKind(*step[static_cast<size_t>(loop.instructions[op])])] += loop.loop.ops[op].seconds;
  const bool spaces = std::any_of(plan.buffers().begin(), plan.buffers().end(),
                                  [](const plan::Buffer& b) { return b.space() != plan::Buffer::DEVICE; });
  result.baselines = playBaselines(plan, machine, result.simulation.model, {result.simulation.limit, host, file},
                                   spaces, result.simulation.timeline.period);
  result.resources = resourcesOf(plan, result.simulation.links, loop, result.simulation.timeline, machine);
  result.wear = wearOf(plan, machine, result.simulation.timeline.period);
  return result;
}

// What any plan of the model at this stage takes at least, next to what these instructions do.
std::string floorText(const Simulation& s) {
  if (!s.floor) return "floor: the plan states none";
  std::string text = cat("floor ", secondsText(s.floor->seconds), " (", floorByName(s.floor->by),
                         "): the least time of any plan of this model and stage");
  if (s.floor->seconds <= 0) return text;
  char times[64];
  std::snprintf(times, sizeof times, "; the bound is %.2f times that", s.bound.seconds / s.floor->seconds);
  return text + times;
}

void printText(const Result& result, const plan::Plan& plan, const profile::Profile& machine) {
  const Simulation& s = result.simulation;
  out::printf("step %s, bound %s (%s), gap %.1f %%\n", secondsText(s.timeline.period).c_str(),
              secondsText(s.bound.seconds).c_str(), boundByName(s.bound.by), 100 * s.gap());
  out::printf("%s\n", floorText(s).c_str());
  out::printf(
      "%s of %s; communication not hidden %s; peak memory per rank %s, %s\n", counted(machine.ranks(), "rank").c_str(),
      machine.name().c_str(), secondsText(s.timeline.exposed).c_str(), bytesText(s.peak).c_str(),
      s.peak <= s.limit ? cat("which fits ", bytesText(s.limit)).c_str()
                        : cat("which is ", bytesText(s.peak - s.limit), " too much for ", bytesText(s.limit)).c_str());
  out::printf("\n%-18s %10s   part of the step\n", "where it goes", "seconds");
  std::vector<std::pair<double, std::string>> parts;
  for (const auto& [kind, seconds] : result.parts) parts.emplace_back(seconds, kind);
  std::sort(parts.rbegin(), parts.rend());
  for (const auto& [seconds, kind] : parts)
    out::printf("  %-16s %10s   %5.1f %%\n", kind.c_str(), secondsText(seconds).c_str(),
                100 * seconds / s.timeline.period);
  printResources(result.resources, s.bound, s.timeline.period);
  printWear(result.wear);
  printBaselines(result.baselines, s.timeline.period);
  if (machine.ranks() != plan.ranks())
    out::printf("\nThe plan is for %s: sharded bytes were scaled, its memory was not laid out again.\n",
                counted(plan.ranks(), "rank").c_str());
}

void printJson(const Result& result, const plan::Plan& plan, const profile::Profile& machine) {
  const Simulation& s = result.simulation;
  json::Object parts;
  for (const auto& [kind, seconds] : result.parts) parts.set(kind, seconds);
  json::Object root{{"profile", machine.name()},
                    {"ranks", machine.ranks()},
                    {"zero", static_cast<int64_t>(plan.zero_stage())},
                    {"step_seconds", s.timeline.period},
                    {"bound_seconds", s.bound.seconds},
                    {"bound_by", boundByName(s.bound.by)},
                    {"bounds", json::Object{{"compute", s.bound.compute},
                                            {"communication", s.bound.communication},
                                            {"cycle", s.bound.cycle},
                                            {"memory", s.bound.memory},
                                            {"to_device", s.bound.toDevice},
                                            {"to_host", s.bound.toHost},
                                            {"file_in", s.bound.fileIn},
                                            {"file_out", s.bound.fileOut},
                                            {"host_compute", s.bound.hostCompute},
                                            {"host_memory", s.bound.hostMemory}}},
                    {"floor_seconds", s.floor ? json::Value(s.floor->seconds) : json::Value()},
                    {"floor_by", s.floor ? json::Value(floorByName(s.floor->by)) : json::Value()},
                    {"floors", s.floor ? json::Value(json::Object{{"products", s.floor->products},
                                                                  {"state", s.floor->state},
                                                                  {"communication", s.floor->communication}})
                                       : json::Value()},
                    {"exposed_communication_seconds", s.timeline.exposed},
                    {"compute_seconds", s.timeline.computeSeconds},
                    {"communication_seconds", std::max(s.timeline.nodeLinkSeconds, s.timeline.networkSeconds)},
                    {"links", linksJson(s.links)},
                    {"resources", resourcesJson(result.resources)},
                    {"written", wearJson(result.wear)},
                    {"seconds_by_kind", std::move(parts)},
                    {"peak_bytes", s.peak},
                    {"live_bytes", s.live},
                    {"memory_limit", s.limit},
                    {"fits", s.peak <= s.limit}};
  setBaselines(root, result.baselines);
  out::printf("%s\n", json::write(std::move(root), 2).c_str());
}

// The last simulated step, with a thread for each stream, and a counter for each kind of buffer: the bytes of a rank
// that live.
io::TraceEvents traceOf(const Simulation& s, const plan::Plan& plan) {
  io::TraceEvents events;
  events.processes.push_back({0, cat(plan.model(), ", predicted")});
  for (int stream = 0; stream < plan.streams_size(); ++stream)
    events.threads.push_back({0, stream, plan.streams(stream)});
  const std::vector<const plan::Instruction*> step = plan::stepInstructions(plan);
  for (size_t op = 0; op < s.loop.instructions.size(); ++op) {
    const int index = s.loop.instructions[op];
    const plan::Instruction& instruction = *step[static_cast<size_t>(index)];
    // The instruction's work on any machine, so that a measured trace shows its distance to the roofline.
    const profile::Work work = profile::workOf(instruction, plan);
    events.slices.push_back({0,
                             instruction.stream(),
                             instruction.label(),
                             plan::instructionKind(instruction),
                             s.timeline.begin[op] * 1e6,
                             (s.timeline.end[op] - s.timeline.begin[op]) * 1e6,
                             {{"instruction", index},
                              {"alone", s.loop.loop.ops[op].seconds * 1e6},
                              {"flops", work.flops},
                              {"bytes", work.bytes},
                              {"type", work.tf32 ? "tf32" : plan::word(work.type)}}});
  }
  std::vector<uint64_t> last(plan::CONSTANTS + 1, 0);
  for (const MemoryUse& use : memoryUseOf(plan, lifetimesOf(plan, s.loop, s.timeline)))
    for (size_t kind = 0; kind < last.size(); ++kind)
      if (use.bytes[kind] != last[kind])
        events.counts.push_back(
            {0, plan::word(static_cast<plan::BufferKind>(kind)), use.seconds * 1e6, last[kind] = use.bytes[kind]});
  return events;
}

Status writeTrace(const Simulation& s, const plan::Plan& plan, const std::string& path, const std::string& format) {
  io::TraceEvents events = traceOf(s, plan);
  return format == "perfetto" ? io::writePerfettoTrace(events, path) : io::writeChromeTrace(std::move(events), path);
}

struct SimulateOptions {
  std::string plan, profile, trace, format = "chrome";
  int64_t ranks = 0;
  uint64_t limit = 0, host = 0, file = 0;
  bool json = false;
};

int simulate(SimulateOptions& o, const options::Given& given) {
  if (given.has("--format") && o.trace.empty()) return misuse("--format is that of --trace FILE");
  Expected<std::unique_ptr<plan::Plan>> plan = plan::readProvedPlan(o.plan, plan::Undigested::kAccepted);
  if (!plan.ok()) return fail(plan.status().message());
  if (Status status = requireStep(**plan, o.plan, "to predict"); !status.ok()) return fail(status.message());
  Expected<profile::Profile> machine = schedule::loadProfile(o.profile);
  if (!machine.ok()) return fail(machine.status().message());
  machine = machine->withRanks(o.ranks > 0 ? o.ranks : (*plan)->ranks());
  if (!machine.ok()) return fail(machine.status().message());
  Expected<Result> result = resultOf(**plan, *machine, o.limit, o.host, o.file);
  if (!result.ok()) return fail(o.plan + ": " + result.status().message());
  if (!o.trace.empty())
    if (Status written = writeTrace(result->simulation, **plan, o.trace, o.format); !written.ok())
      return fail(written.message());
  if (o.json)
    printJson(*result, **plan, *machine);
  else
    printText(*result, **plan, *machine);
  return 0;
}

}  // namespace

Command simulateCommand() {
  using O = SimulateOptions;
  using Row = options::Rows<O>;
  options::Table table{"sheaf simulate",
                       "Predicts the step of a plan on a machine, without the machine.",
                       {"sheaf simulate OUT.plan --profile NAME|FILE [options]"},
                       Row::positional<&O::plan>("OUT.plan"),
                       {},
                       ""};
  table.sections = {
      {"Machine",
       {Row::text<&O::profile>("--profile", "NAME|FILE",
                               "Machine: a shipped profile, or a file made by `sheaf profile`.")
            .required(cat("which machine? Shipped are ", listText(schedule::profileNames()),
                          "; `sheaf profile -o FILE` measures this one")),
        Row::integer<&O::ranks>("--ranks", "N", 1, plan::kMaxRanks, "Number of ranks; every rank keeps its rows.")
            .defaultsTo("the plan's"),
        Row::bytes<&O::limit>("--memory-limit", "Memory of a rank's device.").defaultsTo("the profile's"),
        Row::bytes<&O::host>("--host-memory", "Host memory of a rank, for other systems that offload.")
            .defaultsTo("no limit"),
        Row::bytes<&O::file>("--file-space", "Files of a rank, for other systems that offload.")
            .defaultsTo("no limit")}},
      {"Output",
       {Row::flag<&O::json>("--json", "Print JSON."),
        Row::text<&O::trace>(
            "--trace", "FILE",
            "Write when each instruction ran, for chrome://tracing or Perfetto, as `sheaf-run --trace` "
            "does, with counters of the memory that lives, by kind.")
            .writes([](const options::Given& given) {
              return given.is("--format", "perfetto") ? std::vector<std::string>{"perfetto", "pftrace"}
                                                      : std::vector<std::string>{"json"};
            }),
        Row::word<&O::format>("--format", {"chrome", "perfetto"},
                              "Format of --trace: JSON as `sheaf-run` writes it, or Perfetto's protobuf.")}}};
  return command(std::move(table), simulate);
}

}  // namespace sheaf::tool
