#include "runtime/exec/SavedState.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>

#include "runtime/base/Text.h"
#include "runtime/exec/Agreement.h"
#include "runtime/plan/LossScale.h"
#include "runtime/plan/SavedParts.h"
#include "runtime/plan/Types.h"

namespace sheaf::exec {
namespace {

constexpr uint64_t kChunkElements = 1 << 20;

// Saves the exact values of a parameter: its master weights where it has them. So bf16 and f32 runs can resume each
// other's state.
plan::ElementType savedType(const plan::Bucket& bucket) {
  return bucket.master() ? plan::F32 : bucket.type();
}

std::optional<plan::ElementType> elementTypeOf(io::DataType type) {
  if (!io::factsOf(type).isFloatInPlans()) return std::nullopt;
  return io::factsOf(type).type;
}

std::string kindOf(const plan::Bucket& bucket, int slot) {
  return slot == exactSlot(bucket) ? io::kParameterKind : bucket.states(slot).name();
}

io::SavedParameter describe(const plan::Plan& plan, const plan::Parameter& parameter) {
  const plan::Bucket& bucket = plan.buckets(static_cast<int>(parameter.bucket()));
  io::SavedParameter saved{.name = parameter.name(),
                           .type = io::dataTypeOf(savedType(bucket)),
                           .shape = {parameter.shape().begin(), parameter.shape().end()},
                           .permutation = {parameter.permutation().begin(), parameter.permutation().end()},
                           .states = {},
                           .frozen = !bucket.trainable()};
  for (int slot = bucket.master() ? 1 : 0; slot < bucket.states_size(); ++slot)
    saved.states.push_back(bucket.states(slot).name());
  std::sort(saved.states.begin(), saved.states.end());
  return saved;
}

Status saveRank(const StateAccess& state, int64_t rank, const std::string& path, io::Manifest::File& file) {
  const plan::Plan& plan = state.plan();
  Expected<io::SafetensorsWriter> writer = createRankFile(path, plan, rank);
  if (!writer.ok()) return writer.status();
  std::vector<std::byte> values;
  for (const plan::SavedPart& part : plan::savedParts(plan, rank)) {
    const plan::Parameter& parameter = plan.parameters(part.parameter);
    const int bucket = static_cast<int>(parameter.bucket());
    for (uint64_t begin = part.begin; begin < part.end; begin += kChunkElements) {
      values.resize(std::min(part.end - begin, kChunkElements) * state.elementBytes(bucket, part.slot));
      SHEAF_RETURN_IF_ERROR(state.readOf(rank, bucket, part.slot, parameter.offset() + begin, values));
      SHEAF_RETURN_IF_ERROR(writer->write(values));
    }
  }
  SHEAF_RETURN_IF_ERROR(writer->commit());
  file.size = writer->size();
  file.checksum = writer->checksum();
  return {};
}

// Gathers the list of all ranks' files on process 0.
Status gatherFiles(const StateAccess& state, int64_t step, std::vector<io::Manifest::File>& files) {
  std::vector<uint64_t> numbers;
  for (const io::Manifest::File& file : files) numbers.insert(numbers.end(), {file.size, file.checksum});
  const std::string mine(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(uint64_t));
  Expected<std::vector<std::string>> all = state.processes()->gather(mine, cat("the state's files of step ", step));
  if (!all.ok()) return all.status();
  files.clear();
  for (const std::string& message : *all) {
    if (message.size() != mine.size())
      return Status::error("a process has saved the files of other ranks than its own");
    std::memcpy(numbers.data(), message.data(), message.size());
    for (size_t i = 0; i < numbers.size(); i += 2) {
      io::Manifest::File& file = files.emplace_back();
      file.name = rankFile(static_cast<int64_t>(files.size()) - 1);
      file.size = numbers[i];
      file.checksum = numbers[i + 1];
    }
  }
  return {};
}

}  // namespace

Expected<io::SafetensorsWriter> createRankFile(const std::string& path, const plan::Plan& plan, int64_t rank) {
  std::vector<io::SafetensorsWriter::Entry> entries;
  for (const plan::SavedPart& part : plan::savedParts(plan, rank)) {
    const plan::Parameter& parameter = plan.parameters(part.parameter);
    const plan::Bucket& bucket = plan.buckets(static_cast<int>(parameter.bucket()));
    entries.push_back({cat(kindOf(bucket, part.slot), "/", part.begin, "/", parameter.name()),
                       io::dataTypeOf(plan::slotType(bucket, part.slot)),
                       {static_cast<int64_t>(part.end - part.begin)}});
  }
  return io::SafetensorsWriter::createDirect(path, entries);
}

std::string rankFile(int64_t rank) {
  char name[40];
  std::snprintf(name, sizeof name, "rank-%05lld.safetensors", static_cast<long long>(rank));
  return name;
}

Expected<io::CheckpointWriter> openState(const StateAccess& state, const std::string& folder, int64_t step) {
  comm::ProcessGroup* processes = state.processes();
  if (!processes) return io::CheckpointWriter::create(folder, step);
  const std::string what = cat("the state's folder of step ", step);
  Expected<io::CheckpointWriter> writer = Status::error("");
  if (state.first()) writer = io::CheckpointWriter::create(folder, step);
  SHEAF_RETURN_IF_ERROR(agreeOnStatus(processes, what, state.first() ? writer.status() : Status()));
  Expected<std::string> name = shareName(processes, state.first() ? writer->name() : "", what);
  if (!name.ok()) return name.status();
  if (!state.first()) writer = io::CheckpointWriter::join(folder, *name);
  SHEAF_RETURN_IF_ERROR(agreeOnStatus(processes, what, writer.status()));
  return writer;
}

io::Manifest manifestOf(const plan::Plan& plan, const RunPosition& position) {
  io::Manifest manifest{.step = position.step,
                        .samples = static_cast<int64_t>(position.samples),
                        .updates = position.updates,
                        .seed = plan.training().seed(),
                        .shuffleSeed = position.shuffleSeed,
                        .lossScale = position.lossScale,
                        .length = position.length,
                        .run = position.run,
                        .cpu = position.cpu,
                        .ranks = plan.ranks(),
                        .zeroStage = plan.zero_stage(),
                        .model = plan.model(),
                        .optimizer = plan.training().optimizer(),
                        .parameters = {},
                        .files = {}};
  for (const plan::Parameter& parameter : plan.parameters()) manifest.parameters.push_back(describe(plan, parameter));
  return manifest;
}

Status saveState(const StateAccess& state, const std::string& folder, const RunPosition& position) {
  Expected<io::CheckpointWriter> writer = openState(state, folder, position.step);
  if (!writer.ok()) return writer.status();
  io::Manifest manifest = manifestOf(state.plan(), position);
  Status written;
  for (int64_t rank = state.firstRank(); rank < state.firstRank() + state.localRanks(); ++rank) {
    io::Manifest::File& file = manifest.files.emplace_back();
    file.name = rankFile(rank);
    if (written.ok()) written = saveRank(state, rank, writer->path(file.name), file);
  }
  const std::string what = cat("the saved state of step ", position.step);
  SHEAF_RETURN_IF_ERROR(agreeOnStatus(state.processes(), what, written));
  if (state.processes()) SHEAF_RETURN_IF_ERROR(gatherFiles(state, position.step, manifest.files));
  return agreeOnStatus(state.processes(), what, state.first() ? writer->commit(manifest) : Status());
}

Expected<StateFit> checkState(const plan::Plan& plan, const io::Checkpoint& checkpoint, const char* option) {
  std::map<std::string, const io::SavedParameter*> saved;
  for (const io::SavedParameter& parameter : checkpoint.manifest().parameters) saved[parameter.name] = &parameter;
  auto wrong = [&](const std::string& why) {
    return Status::error(cat(option, ": the state in ", checkpoint.folder(), " is not this plan's: ", why));
  };
  StateFit fit;
  for (const plan::Parameter& parameter : plan.parameters()) {
    auto found = saved.find(parameter.name());
    io::SavedParameter mine = describe(plan, parameter);
    if (found == saved.end() && mine.frozen) {
      fit.initial.push_back(mine.name);
      continue;
    }
    if (found == saved.end()) return wrong(cat("it has no parameter '", parameter.name(), "'"));
    io::SavedParameter theirs = *found->second;
    std::sort(theirs.states.begin(), theirs.states.end());
    // Trained in f32, frozen perhaps in a narrower type.
    const bool sameType =
        theirs.type == mine.type || (theirs.frozen != mine.frozen && io::convertible(theirs.type, mine.type));
    if (theirs.shape != mine.shape || theirs.permutation != mine.permutation || !sameType)
      return wrong(cat("parameter '", mine.name, "' has shape ", shapeText(theirs.shape), " there and ",
                       shapeText(mine.shape), " here, or another layout or type"));
    if (theirs.frozen != mine.frozen)
      (mine.frozen ? fit.settled : fit.fresh).push_back(mine.name);
    else if (theirs.states != mine.states)
      return wrong(cat("parameter '", mine.name, "' has optimizer state (", listText(theirs.states), ") there, of '",
                       checkpoint.manifest().optimizer, "', and (", listText(mine.states), ") here, of '",
                       plan.training().optimizer(), "'"));
    saved.erase(found);
  }
  for (const auto& [name, theirs] : saved)
    if (!theirs->frozen) return wrong(cat("the plan has no parameter '", name, "'"));
  return fit;
}

Status readLossScale(const StateAccess& state, RunPosition& position) {
  const plan::Plan& plan = state.plan();
  if (!plan.has_loss_scale_buffer()) return {};
  double values[plan::kLossScaleState];
  SHEAF_RETURN_IF_ERROR(state.readBuffer(plan.loss_scale_buffer(), std::as_writable_bytes(std::span(values))));
  setLossScale(position, std::as_bytes(std::span(values)));
  return {};
}

void setLossScale(RunPosition& position, std::span<const std::byte> state) {
  double values[plan::kLossScaleState] = {};
  std::memcpy(values, state.data(), std::min(state.size(), sizeof values));
  position.lossScale = {.scale = values[0], .goodSteps = static_cast<int64_t>(values[1])};
  position.updates = static_cast<int64_t>(values[2]);
}

Status writeLossScale(const StateAccess& state, RunPosition& position) {
  const plan::Plan& plan = state.plan();
  if (!plan.has_loss_scale_buffer()) {
    position.lossScale.reset();
    return {};
  }
  const plan::LossScale& rule = plan.training().loss_scale();
  if (!position.lossScale || !plan::isDynamic(rule)) position.lossScale = {.scale = rule.initial(), .goodSteps = 0};
  // Of a run with other settings, perhaps. The device computes with f32.
  position.lossScale->scale = static_cast<float>(std::max(position.lossScale->scale, plan::leastOf(rule)));
  const double values[plan::kLossScaleState] = {position.lossScale->scale,
                                                static_cast<double>(position.lossScale->goodSteps),
                                                static_cast<double>(position.updates)};
  return state.writeBuffer(plan.loss_scale_buffer(), std::as_bytes(std::span(values)));
}

Status loadState(const StateAccess& state, const io::Checkpoint& checkpoint) {
  const plan::Plan& plan = state.plan();
  std::map<std::string, const io::SavedParameter*> saved;
  for (const io::SavedParameter& parameter : checkpoint.manifest().parameters) saved[parameter.name] = &parameter;
  for (const plan::Parameter& parameter : plan.parameters()) {
    int bucket = static_cast<int>(parameter.bucket());
    const plan::Bucket& info = plan.buckets(bucket);
    const auto known = saved.find(parameter.name());
    if (known == saved.end()) continue;
    const std::optional<plan::ElementType> type = elementTypeOf(known->second->type);
    if (!type) return Status::error(cat("--resume: parameter '", parameter.name(), "' has a type that no plan has"));
    auto load = [&](int slot) -> Status {
      for (const io::Checkpoint::Piece& piece : checkpoint.pieces(kindOf(info, slot), parameter.name())) {
        uint64_t begin = parameter.offset() + piece.begin;
        SHEAF_RETURN_IF_ERROR(slot == exactSlot(info) ? state.writeValues(bucket, begin, *type, piece.data)
                                                      : state.write(bucket, slot, begin, piece.data));
        checkpoint.release(piece);
      }
      return {};
    };
    SHEAF_RETURN_IF_ERROR(load(exactSlot(info)));
    for (int slot = info.master() ? 1 : 0; slot < info.states_size(); ++slot) SHEAF_RETURN_IF_ERROR(load(slot));
  }
  return {};
}

}  // namespace sheaf::exec
