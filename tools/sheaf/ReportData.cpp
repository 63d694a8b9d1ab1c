#include "tools/sheaf/ReportData.h"

#include <cmath>
#include <map>
#include <unordered_map>

#include "runtime/base/Text.h"
#include "runtime/plan/Places.h"
#include "runtime/plan/StepWork.h"
#include "runtime/plan/Summary.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Words.h"
#include "runtime/profile/Work.h"
#include "tools/sheaf/Lifetimes.h"

namespace sheaf::tool {
namespace {

using namespace schedule;

int64_t nanoseconds(double seconds) {
  return std::llround(seconds * 1e9);
}

// Texts that many rows share, each once; a row has its index.
class Texts {
 public:
  int64_t index(const std::string& text) {
    auto [at, fresh] = indices_.try_emplace(text, static_cast<int64_t>(texts_.size()));
    if (fresh) texts_.push_back(text);
    return at->second;
  }
  json::Array take() { return std::move(texts_); }

 private:
  std::unordered_map<std::string, int64_t> indices_;
  json::Array texts_;
};

// Shapes and settings of an instruction, for people.
std::string detailOf(const plan::Plan& plan, const plan::Instruction& instruction) {
  if (instruction.has_kernel()) {
    const plan::Kernel& kernel = plan.kernels(static_cast<int>(instruction.kernel().kernel()));
    return cat("kernel ", instruction.kernel().kernel(), ", ", countText(static_cast<uint64_t>(kernel.rows())),
               " rows");
  }
  std::string text;
  if (instruction.has_call())
    for (const plan::Attribute& attribute : instruction.call().attributes()) {
      text += text.empty() ? "" : ", ";
      text += attribute.has_integer() ? cat(attribute.name(), " ", attribute.integer())
                                      : cat(attribute.name(), " ", attribute.real());
    }
  if (instruction.has_collective()) {
    const plan::Collective& collective = instruction.collective();
    text = cat(countText(collective.count()), " x ", plan::word(collective.type()), " a rank, ",
               plan::word(collective.phase()));
  }
  if (instruction.has_output()) text = plan::word(instruction.output().output());
  return text;
}

struct Waits {
  json::Array start, from, distance;  // of op i: from[start[i]] to from[start[i + 1]]
  json::Array blocker, blockerDistance;
};

// What each op waits for, and which of it ends last.
Waits waitsOf(const PlanLoop& loop, const Timeline& timeline) {
  std::vector<std::vector<Dependence>> by(loop.loop.ops.size());
  for (const Dependence& dependence : loop.loop.dependences) by[dependence.to].push_back(dependence);
  Waits waits;
  for (const std::vector<Dependence>& list : by) {
    waits.start.push_back(static_cast<int64_t>(waits.from.size()));
    double latest = -INFINITY;
    int64_t blocker = -1, distance = 0;
    for (const Dependence& d : list) {
      waits.from.push_back(d.from);
      waits.distance.push_back(d.distance);
      const double end = timeline.end[d.from] - d.distance * timeline.period;
      if (end > latest) latest = end, blocker = d.from, distance = d.distance;
    }
    waits.blocker.push_back(blocker);
    waits.blockerDistance.push_back(distance);
  }
  waits.start.push_back(static_cast<int64_t>(waits.from.size()));
  return waits;
}

// The machine's unit that an op occupies, as an index into this list.
constexpr const char* kUnitNames[schedule::kUnits] = {"compute",   "host",    "links",   "node link", "network",
                                                      "to_device", "to_host", "file_in", "file_out",  "host compute"};

json::Object opsOf(const ReportInput& in, Texts& texts) {
  const plan::Plan& plan = in.plan;
  const PlanLoop& loop = in.simulation.loop;
  const Timeline& timeline = in.simulation.timeline;
  const std::vector<const plan::Instruction*> step = plan::stepInstructions(plan);
  json::Array label, kind, stream, unit, begin, seconds, alone, flops, bytes, detail, instruction;
  json::Array usesStart, usesBuffer, usesAccess;
  for (size_t op = 0; op < loop.instructions.size(); ++op) {
    const plan::Instruction& one = *step[static_cast<size_t>(loop.instructions[op])];
    const profile::Work work = profile::workOf(one, plan);
    label.push_back(texts.index(one.label()));
    kind.push_back(texts.index(plan::instructionKind(one)));
    stream.push_back(one.stream());
    unit.push_back(static_cast<int64_t>(loop.loop.ops[op].unit));
    begin.push_back(nanoseconds(timeline.begin[op]));
    seconds.push_back(nanoseconds(timeline.end[op]) - nanoseconds(timeline.begin[op]));
    alone.push_back(nanoseconds(loop.loop.ops[op].seconds));
    flops.push_back(static_cast<int64_t>(std::llround(work.flops)));
    bytes.push_back(one.has_collective() ? static_cast<int64_t>(plan::collectiveBytes(plan, one.collective()))
                                         : static_cast<int64_t>(std::llround(work.bytes)));
    detail.push_back(texts.index(detailOf(plan, one)));
    instruction.push_back(loop.instructions[op]);
    usesStart.push_back(static_cast<int64_t>(usesBuffer.size()));
    std::map<uint32_t, int64_t> uses;
    plan::forEachOperand(one, [&](const plan::Operand& operand) {
      uses[operand.buffer()] |= operand.access() == plan::READ ? 1 : operand.access() == plan::WRITE ? 2 : 3;
    });
    for (const auto& [buffer, access] : uses) usesBuffer.push_back(buffer), usesAccess.push_back(access);
  }
  usesStart.push_back(static_cast<int64_t>(usesBuffer.size()));
  Waits waits = waitsOf(loop, timeline);
  json::Object ops{{"label", std::move(label)},
                   {"kind", std::move(kind)},
                   {"stream", std::move(stream)},
                   {"unit", std::move(unit)},
                   {"begin", std::move(begin)},
                   {"time", std::move(seconds)},
                   {"alone", std::move(alone)},
                   {"flops", std::move(flops)},
                   {"bytes", std::move(bytes)},
                   {"detail", std::move(detail)},
                   {"instruction", std::move(instruction)},
                   {"usesStart", std::move(usesStart)},
                   {"usesBuffer", std::move(usesBuffer)},
                   {"usesAccess", std::move(usesAccess)},
                   {"waitsStart", std::move(waits.start)},
                   {"waitsFrom", std::move(waits.from)},
                   {"waitsDistance", std::move(waits.distance)},
                   {"blocker", std::move(waits.blocker)},
                   {"blockerDistance", std::move(waits.blockerDistance)}};
  return ops;
}

json::Array turnsOf(const plan::Plan& plan, const PlanLoop& loop) {
  json::Array turns;
  int64_t first = 0;
  size_t op = 0;
  for (const plan::StepTurn& turn : plan::stepOf(plan)) {
    first += turn.list->size();
    const size_t begin = op;
    while (op < loop.instructions.size() && loop.instructions[op] < first) ++op;
    turns.push_back(json::Object{{"name", std::string(turn.name)},
                                 {"microBatch", turn.microBatch},
                                 {"first", static_cast<int64_t>(begin)},
                                 {"ops", static_cast<int64_t>(op - begin)}});
  }
  return turns;
}

json::Object buffersOf(const plan::Plan& plan) {
  json::Array name, kind, space, offset, bytes, persistent;
  for (const plan::Buffer& buffer : plan.buffers()) {
    name.push_back(buffer.name());
    space.push_back(static_cast<int64_t>(buffer.space()));
    kind.push_back(static_cast<int64_t>(buffer.kind()));
    offset.push_back(buffer.offset());
    bytes.push_back(buffer.bytes());
    persistent.push_back(buffer.persistent() ? 1 : 0);
  }
  return {{"name", std::move(name)},     {"kind", std::move(kind)},   {"space", std::move(space)},
          {"offset", std::move(offset)}, {"bytes", std::move(bytes)}, {"persistent", std::move(persistent)}};
}

json::Object livesOf(const std::vector<Lifetime>& lifetimes, size_t ops) {
  json::Array buffer, first, last, begin, end;
  for (const Lifetime& life : lifetimes) {
    buffer.push_back(life.buffer);
    first.push_back(life.first);
    last.push_back(life.last >= static_cast<int64_t>(ops) ? int64_t{-1} : life.last);
    begin.push_back(nanoseconds(life.begin));
    end.push_back(nanoseconds(life.end));
  }
  return {{"buffer", std::move(buffer)},
          {"first", std::move(first)},
          {"last", std::move(last)},
          {"begin", std::move(begin)},
          {"end", std::move(end)}};
}

// The arena of a space, and what lives in it: bytes of each kind from each time on.
json::Object spaceOf(const plan::Plan& plan, const std::vector<Lifetime>& lifetimes, plan::Buffer::Space space) {
  json::Array time, byKind;
  std::vector<json::Array> bytes(plan::CONSTANTS + 1);
  for (const MemoryUse& use : memoryUseOf(plan, lifetimes, space)) {
    time.push_back(nanoseconds(use.seconds));
    for (size_t kind = 0; kind < bytes.size(); ++kind) bytes[kind].push_back(use.bytes[kind]);
  }
  for (json::Array& kind : bytes) byKind.push_back(std::move(kind));
  return {{"space", static_cast<int64_t>(space)},
          {"name", plan::word(space)},
          {"arena", plan::peakBytes(plan, space)},
          {"time", std::move(time)},
          {"byKind", std::move(byKind)}};
}

json::Object memoryOf(const plan::Plan& plan, const std::vector<Lifetime>& lifetimes, const Simulation& simulation) {
  json::Array kinds, declared, spaces;
  for (int kind = 0; kind <= plan::CONSTANTS; ++kind) kinds.push_back(plan::word(static_cast<plan::BufferKind>(kind)));
  for (const plan::KindBytes& held : plan.memory().by_kind())
    declared.push_back(json::Object{{"kind", static_cast<int64_t>(held.kind())}, {"bytes", held.bytes()}});
  spaces.push_back(spaceOf(plan, lifetimes, plan::Buffer::DEVICE));
  for (const plan::SpaceMemory& memory : plan.memory().spaces())
    spaces.push_back(spaceOf(plan, lifetimes, memory.space()));
  return {{"arena", plan.memory().peak_bytes()}, {"libraries", plan.memory().library_bytes()},
          {"limit", simulation.limit},           {"live", simulation.live},
          {"kinds", std::move(kinds)},           {"largest", std::move(declared)},
          {"spaces", std::move(spaces)}};
}

json::Array bucketsOf(const plan::Plan& plan) {
  json::Array buckets;
  for (const plan::Bucket& bucket : plan.buckets()) {
    json::Array states;
    for (const plan::State& state : bucket.states())
      states.push_back(json::Object{{"name", state.name()}, {"buffer", state.buffer()}});
    const bool grouped = static_cast<int>(bucket.group()) < plan.training().groups_size();
    buckets.push_back(
        json::Object{{"name", bucket.name()},
                     {"type", plan::word(bucket.type())},
                     {"bytes", bucket.elements() * plan::elementBytes(bucket.type())},
                     {"elements", bucket.elements()},
                     {"gradientType", plan::word(plan::gradientType(bucket))},
                     {"group", grouped ? plan.training().groups(static_cast<int>(bucket.group())).name() : ""},
                     {"trainable", bucket.trainable()},
                     {"master", bucket.master()},
                     {"parameterParts", plan::parameterParts(plan, bucket)},
                     {"stateParts", plan::stateParts(plan, bucket)},
                     {"buffer", bucket.parameter_buffer()},
                     {"states", std::move(states)}});
  }
  return buckets;
}

json::Object parametersOf(const plan::Plan& plan, Texts& texts) {
  json::Array name, shape, type, bucket, offset, bytes;
  for (const plan::Parameter& parameter : plan.parameters()) {
    const uint64_t width = plan::elementBytes(parameter.type());
    name.push_back(texts.index(parameter.name()));
    shape.push_back(texts.index(shapeText({parameter.shape().data(), static_cast<size_t>(parameter.shape_size())})));
    type.push_back(texts.index(plan::word(parameter.type())));
    bucket.push_back(parameter.bucket());
    offset.push_back(parameter.offset() * width);
    bytes.push_back(plan::elementCount(plan::shapeOf(parameter)).value_or(0) * width);
  }
  return {{"name", std::move(name)},     {"shape", std::move(shape)},   {"type", std::move(type)},
          {"bucket", std::move(bucket)}, {"offset", std::move(offset)}, {"bytes", std::move(bytes)}};
}

json::Object communicationOf(const ReportInput& in, Texts& texts) {
  const plan::Plan& plan = in.plan;
  const std::vector<const plan::Instruction*> step = plan::stepInstructions(plan);
  const std::vector<plan::Communication> all = plan::summarize(plan).communication;
  json::Array op, kind, bucket, phase, axis, bytes, sent, network;
  size_t next = 0;  // in `all`, which has the step's collectives in order
  for (size_t i = 0; i < in.simulation.loop.instructions.size(); ++i) {
    const plan::Instruction& one = *step[static_cast<size_t>(in.simulation.loop.instructions[i])];
    if (!one.has_collective()) continue;
    const plan::Communication& communication = all[next++];
    op.push_back(static_cast<int64_t>(i));
    kind.push_back(texts.index(plan::word(communication.op)));
    bucket.push_back(texts.index(communication.bucket));
    phase.push_back(texts.index(plan::word(communication.phase)));
    axis.push_back(texts.index(plan::word(communication.axis)));
    bytes.push_back(communication.bytes);
    sent.push_back(communication.sent);
    network.push_back(communication.network);
  }
  return {{"op", std::move(op)},       {"kind", std::move(kind)},      {"bucket", std::move(bucket)},
          {"phase", std::move(phase)}, {"axis", std::move(axis)},      {"bytes", std::move(bytes)},
          {"sent", std::move(sent)},   {"network", std::move(network)}};
}

json::Object boundsOf(const Simulation& s) {
  json::Array cycle;
  for (uint32_t op : s.bound.onCycle) cycle.push_back(op);
  return {{"seconds", s.bound.seconds},   {"by", boundByName(s.bound.by)},
          {"compute", s.bound.compute},   {"communication", s.bound.communication},
          {"nodeLink", s.bound.nodeLink}, {"network", s.bound.network},
          {"cycle", s.bound.cycle},       {"memory", s.bound.memory},
          {"onCycle", std::move(cycle)}};
}

json::Object predictionOf(const ReportInput& in) {
  const Simulation& s = in.simulation;
  json::Value floor;
  if (s.floor)
    floor = json::Object{{"seconds", s.floor->seconds},
                         {"by", floorByName(s.floor->by)},
                         {"products", s.floor->products},
                         {"state", s.floor->state},
                         {"communication", s.floor->communication}};
  auto link = [](const char* name, double seconds, uint64_t bytes, double bound, bool binds) {
    return json::Object{{"name", name}, {"seconds", seconds}, {"bytes", bytes}, {"bound", bound}, {"binds", binds}};
  };
  const BoundBy by = s.bound.by;
  json::Array links;
  const bool several = in.machine.nodes(in.machine.ranks()) > 1;
  const bool binds = by == BoundBy::kNodeLink || (by == BoundBy::kCommunication && !several);
  if (in.machine.ranks() > 1)
    links.push_back(link(several ? "within nodes" : "between ranks", s.links.nodeSeconds, s.links.use.nodeBytes,
                         s.bound.nodeLink, binds));
  if (several)
    links.push_back(link("between nodes", s.links.networkSeconds, s.links.use.networkBytes, s.bound.network,
                         by == BoundBy::kNetwork));
  return {{"machine", in.machine.name()},  {"ranks", in.machine.ranks()},
          {"step", s.timeline.period},     {"computeSeconds", s.timeline.computeSeconds},
          {"exposed", s.timeline.exposed}, {"gap", s.gap()},
          {"bound", boundsOf(s)},          {"floor", std::move(floor)},
          {"links", std::move(links)}};
}

json::Array stagesOf(const plan::Plan& plan) {
  const plan::Summary summary = plan::summarize(plan);
  const bool two = plan.ranks_per_node() > 0 && plan.network_stage() != plan.zero_stage();
  json::Array stages;
  auto row = [&](const std::string& name, const plan::StageNeeds& needs, bool own) {
    stages.push_back(json::Object{{"name", name},
                                  {"parameters", needs.parameters},
                                  {"gradients", needs.gradients},
                                  {"optimizer", needs.optimizer},
                                  {"total", needs.total()},
                                  {"own", own}});
  };
  for (size_t stage = 0; stage < summary.stages.size(); ++stage)
    row(cat("ZeRO-", stage), summary.stages[stage], !two && static_cast<int>(stage) == plan.zero_stage());
  if (two) row(cat("ZeRO-", plan.zero_stage(), " within nodes, ", plan.network_stage(), " between"), summary.own, true);
  return stages;
}

// What is to be known before training by this plan.
json::Array warningsOf(const ReportInput& in) {
  const Simulation& s = in.simulation;
  json::Array warnings;
  if (s.peak > s.limit)
    warnings.push_back(cat("The plan does not fit: a rank needs ", bytesText(s.peak), ", and ", in.machine.name(),
                           " has ", bytesText(s.limit), ". `sheaf fit` says what would."));
  if (in.machine.ranks() != in.plan.ranks())
    warnings.push_back(cat("The plan is for ", counted(in.plan.ranks(), "rank"), " and is shown on ",
                           in.machine.ranks(), ": sharded bytes were scaled, its memory was not laid out again."));
  constexpr double kMuch = 0.1;
  if (s.timeline.exposed > kMuch * s.timeline.period)
    warnings.push_back(cat("Communication takes ", secondsText(s.timeline.exposed), " of the step's ",
                           secondsText(s.timeline.period), " during which nothing is computed."));
  if (s.gap() > kMuch)
    warnings.push_back(cat("The step takes ", static_cast<int>(std::lround(100 * s.gap())),
                           " % longer than its bound (", boundByName(s.bound.by), ")."));
  for (const plan::File& file : in.plan.files())
    if (file.size() == 0)
      warnings.push_back(
          cat("The file of initial weights ", plan::shortName(file.path()), " was not there when the plan was made."));
  int64_t without = 0;
  for (const plan::Parameter& parameter : in.plan.parameters()) without += !parameter.has_source();
  if (without > 0)
    warnings.push_back(cat(without, " of ", in.plan.parameters_size(),
                           " parameters have no initial values: give them with `sheaf-run --weights`."));
  if (!in.hasGraph)
    warnings.push_back(
        "The plan's file has no graph (`sheaf compile --no-graph`, or `sheaf assemble`): the view of the "
        "training graph is empty.");
  return warnings;
}

json::Value measuredOf(const ReportInput& in) {
  if (!in.measured) return {};
  json::Array begin, time, differences;
  for (size_t op = 0; op < in.measured->begin.size(); ++op) {
    const bool traced = in.measured->begin[op] >= 0;
    begin.push_back(traced ? nanoseconds(in.measured->begin[op]) : int64_t{-1});
    time.push_back(traced ? nanoseconds(in.measured->end[op] - in.measured->begin[op]) : int64_t{0});
  }
  for (const Difference& difference : in.differences)
    differences.push_back(
        json::Object{{"op", difference.op}, {"predicted", difference.predicted}, {"measured", difference.measured}});
  return json::Object{{"rank", in.measured->rank},   {"steps", in.measured->steps},
                      {"step", in.measured->period}, {"begin", std::move(begin)},
                      {"time", std::move(time)},     {"differences", std::move(differences)}};
}

json::Array strings(const google::protobuf::RepeatedPtrField<std::string>& list) {
  return {list.begin(), list.end()};
}

}  // namespace

json::Value reportData(const ReportInput& in) {
  const plan::Plan& plan = in.plan;
  Texts texts;
  json::Array targets, units;
  for (const plan::KernelImage* image : plan::targetImages(plan)) targets.push_back(image->target());
  for (const char* unit : kUnitNames) units.push_back(unit);
  uint64_t elements = 0;
  for (const plan::Parameter& parameter : plan.parameters())
    elements += plan::elementCount(plan::shapeOf(parameter)).value_or(0);
  json::Object ops = opsOf(in, texts);
  json::Object parameters = parametersOf(plan, texts), communication = communicationOf(in, texts);
  const std::vector<Lifetime> lifetimes = lifetimesOf(plan, in.simulation.loop, in.simulation.timeline);
  json::Object root{{"version", 1},
                    {"plan", json::Object{{"model", plan.model()},
                                          {"producer", plan.producer()},
                                          {"division", plan::divisionText(plan)},
                                          {"batch", plan.batch()},
                                          {"microBatches", plan::microBatches(plan)},
                                          {"optimizer", plan.training().optimizer()},
                                          {"parameters", elements},
                                          {"targets", std::move(targets)},
                                          {"options", strings(plan.options())}}},
                    {"prediction", predictionOf(in)},
                    {"streams", strings(plan.streams())},
                    {"units", std::move(units)},
                    {"turns", turnsOf(plan, in.simulation.loop)},
                    {"ops", std::move(ops)},
                    {"buffers", buffersOf(plan)},
                    {"lives", livesOf(lifetimes, in.simulation.loop.instructions.size())},
                    {"memory", memoryOf(plan, lifetimes, in.simulation)},
                    {"buckets", bucketsOf(plan)},
                    {"parameters", std::move(parameters)},
                    {"communication", std::move(communication)},
                    {"stages", stagesOf(plan)},
                    {"decisions", strings(plan.decisions())},
                    {"warnings", warningsOf(in)},
                    {"measured", measuredOf(in)},
                    {"hasGraph", in.hasGraph}};
  root.set("texts", texts.take());
  return root;
}

}  // namespace sheaf::tool
