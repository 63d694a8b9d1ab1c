// sheaf report: a plan as one HTML page that needs no network: its timeline, memory, buckets, links, stages and graph.
#include <cstdio>

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Base64.h"
#include "llvm/Support/Compression.h"
#include "passes/schedule/ShippedProfiles.h"
#include "runtime/base/AtomicFile.h"
#include "runtime/base/OutputPaths.h"
#include "runtime/base/Print.h"
#include "runtime/base/Text.h"
#include "runtime/base/WrittenPath.h"
#include "runtime/plan/PlanFile.h"
#include "runtime/plan/Proof.h"
#include "runtime/plan/Types.h"
#include "tools/report/ReportPage.h"
#include "tools/sheaf/Command.h"
#include "tools/sheaf/PlanKinds.h"
#include "tools/sheaf/ReportData.h"
#include "tools/sheaf/UsualProfile.h"

namespace sheaf::tool {
namespace {

struct ReportOptions {
  std::string plan, output, profile, measured;
  int64_t ranks = 0;
  uint64_t limit = 0;
  bool json = false;
};

constexpr size_t kDifferences = 10;

// A block of the page: zlib's format in base64, which browsers unpack.
std::string block(const char* id, std::string_view base64) {
  return cat("<script type=\"application/octet-stream\" id=\"", id, "\">", base64, "</script>\n");
}

std::string packed(std::string_view text) {
  llvm::SmallVector<uint8_t> bytes;
  llvm::compression::zlib::compress(llvm::arrayRefFromStringRef(text), bytes,
                                    llvm::compression::zlib::BestSizeCompression);
  return llvm::encodeBase64(bytes);
}

Status write(const std::string& path, const std::string& text) {
  Expected<AtomicFile> file = AtomicFile::create(path);
  if (!file.ok()) return file.status();
  SHEAF_RETURN_IF_ERROR(file->write(std::as_bytes(std::span(text))));
  return file->commit();
}

// The profile that the plan was scheduled for; empty if it names none.
std::string ownProfile(const plan::Plan& plan) {
  constexpr std::string_view kOption = "--profile=";
  for (const std::string& option : plan.options())
    if (option.starts_with(kOption)) return option.substr(kOption.size());
  return {};
}

// The machine that is asked for, else the one that the plan was scheduled for, if its profile is still there.
Expected<profile::Profile> machineOf(const std::string& asked, const plan::Plan& plan) {
  if (!asked.empty()) return schedule::loadProfile(asked);
  if (const std::string name = ownProfile(plan); !name.empty())
    if (Expected<profile::Profile> own = schedule::loadProfile(name); own.ok()) return own;
  return schedule::loadProfile(usualProfile(plan));
}

void printDifferences(const ReportInput& in) {
  const std::vector<const plan::Instruction*> step = plan::stepInstructions(in.plan);
  out::printf("step %s measured (rank %lld, median of %lld), %s predicted on %s\n",
              secondsText(in.measured->period).c_str(), static_cast<long long>(in.measured->rank),
              static_cast<long long>(in.measured->steps), secondsText(in.simulation.timeline.period).c_str(),
              in.machine.name().c_str());
  out::printf("%10s %10s   largest differences\n", "measured", "predicted");
  for (const Difference& difference : in.differences) {
    const int index = in.simulation.loop.instructions[difference.op];
    const plan::Instruction& instruction = *step[static_cast<size_t>(index)];
    out::printf("%10s %10s   %s '%s'\n", secondsText(difference.measured).c_str(),
                secondsText(difference.predicted).c_str(), plan::instructionKind(instruction).c_str(),
                shownLine(plan::shortName(instruction.label())).c_str());
  }
}

Expected<std::string> page(const ReportInput& in, const std::string& graph) {
  if (!llvm::compression::zlib::isAvailable())
    return Status::error("LLVM was built without zlib, which packs the data");
  std::string text(report::page());
  std::string blocks = block("report-data", packed(json::write(reportData(in))));
  if (!graph.empty()) blocks += block("report-graph", llvm::encodeBase64(graph));
  text.replace(text.find(report::kDataMarker), report::kDataMarker.size(), blocks);
  return text;
}

int report(ReportOptions& o, const options::Given&) {
  Expected<std::unique_ptr<plan::Plan>> plan = plan::readProvedPlan(o.plan, plan::Undigested::kAccepted);
  if (!plan.ok()) return fail(plan.status().message());
  if (Status status = requireStep(**plan, o.plan, "to report on"); !status.ok()) return fail(status.message());
  Expected<profile::Profile> machine = machineOf(o.profile, **plan);
  if (!machine.ok()) return fail(machine.status().message());
  if (const std::string own = ownProfile(**plan); o.profile.empty() && !own.empty())
    if (Status status = checkOutputPaths({{{"-o", o.output}}}, {{{"the plan's profile", own}}}); !status.ok())
      return misuse(status.message());
  machine = machine->withRanks(o.ranks > 0 ? o.ranks : (*plan)->ranks());
  if (!machine.ok()) return fail(machine.status().message());
  Expected<Simulation> simulation = simulate(**plan, *machine, o.limit);
  if (!simulation.ok()) return fail(o.plan + ": " + simulation.status().message());
  Expected<std::string> graph = plan::readGraph(o.plan);
  if (!graph.ok()) return fail(graph.status().message());
  ReportInput in{**plan, *machine, *simulation, std::nullopt, {}, !graph->empty()};
  if (!o.measured.empty()) {
    Expected<MeasuredStep> measured = readMeasuredStep(o.measured, **plan, simulation->loop);
    if (!measured.ok()) return fail("--measured: " + measured.status().message());
    in.measured = std::move(*measured);
    in.differences = largestDifferences(*in.measured, simulation->timeline, kDifferences);
  }
  std::string text;
  if (o.json) {
    text = json::write(reportData(in)) + "\n";
  } else {
    Expected<std::string> made = page(in, *graph);
    if (!made.ok()) return fail(made.status().message());
    text = std::move(*made);
  }
  if (Status written = write(o.output, text); !written.ok()) return fail(written.message());
  note(cat("wrote ", writtenPath(o.output), o.json ? "" : ": open it in a browser"));
  if (in.measured) printDifferences(in);
  return kDone;
}

}  // namespace

Command reportCommand() {
  using O = ReportOptions;
  using Row = options::Rows<O>;
  options::Table table{"sheaf report",
                       "Writes a plan as one HTML page: timeline, memory, buckets, links, stages, graph, decisions.",
                       {"sheaf report OUT.plan -o report.html [--measured TRACE.json] [--profile NAME|FILE]"},
                       Row::positional<&O::plan>("OUT.plan"),
                       {},
                       "The page needs no network, and a browser of 2023 or later."};
  table.sections = {
      {"Output",
       {Row::text<&O::output>("-o", "REPORT.html", "File for the page.")
            .writes([](const options::Given& given) {
              return std::vector<std::string>{given.has("--json") ? "json" : "html"};
            })
            .required("where is the report to be written?"),
        Row::flag<&O::json>("--json", "Write what the page shows as JSON instead.")}},
      {"Contents",
       {Row::text<&O::measured>("--measured", "TRACE.json",
                                "A trace of `sheaf-run --trace` of this plan: it is shown over the predicted timeline, "
                                "and the ten largest differences are listed."),
        Row::text<&O::profile>("--profile", "NAME|FILE", "Machine that the step is predicted on.")
            .defaultsTo("that of `sheaf compile`, else the shipped profile nearest to the plan's first target"),
        Row::integer<&O::ranks>("--ranks", "N", 1, plan::kMaxRanks, "Number of ranks; every rank keeps its rows.")
            .defaultsTo("the plan's"),
        Row::bytes<&O::limit>("--memory-limit", "Memory of a rank's device.").defaultsTo("the profile's")}}};
  return command(std::move(table), report);
}

}  // namespace sheaf::tool
