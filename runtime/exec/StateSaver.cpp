#include "runtime/exec/StateSaver.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <utility>

#include "runtime/base/AtomicFile.h"
#include "runtime/base/Json.h"
#include "runtime/base/MappedFile.h"
#include "runtime/base/ResourceErrors.h"
#include "runtime/base/Text.h"
#include "runtime/exec/Agreement.h"
#include "runtime/io/Safetensors.h"
#include "runtime/plan/SavedParts.h"

namespace sheaf::exec {
namespace {

using Clock = std::chrono::steady_clock;

double secondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

Status abandoned() {
  return Status::error("the state that was being saved is abandoned");
}

// Between processes, in the state's folder until it is whole: what a process's files are, or its error.
std::string partsName(int64_t process) {
  char name[40];
  std::snprintf(name, sizeof name, "process-%05lld", static_cast<long long>(process));
  return name;
}

std::string partsText(const Status& status, const std::vector<io::Manifest::File>& files) {
  json::Array list;
  for (const io::Manifest::File& file : files)
    list.push_back(json::Object{{"name", file.name}, {"size", file.size}, {"checksum", file.checksum}});
  return json::write(json::Object{{"error", status.message()}, {"files", std::move(list)}});
}

Status parseParts(std::string_view text, std::vector<io::Manifest::File>& files) {
  Expected<json::Value> value = json::parse(text);
  if (!value.ok()) return value.status();
  const json::Object* object = value->object();
  const json::Value* error = object ? object->find("error") : nullptr;
  const json::Value* list = object ? object->find("files") : nullptr;
  if (!error || !error->string() || !list || !list->array()) return Status::error("its list of files is damaged");
  if (!error->string()->empty()) return Status::error(*error->string());
  for (const json::Value& entry : *list->array()) {
    const json::Object* fields = entry.object();
    const json::Value* name = fields ? fields->find("name") : nullptr;
    const json::Value* size = fields ? fields->find("size") : nullptr;
    const json::Value* sum = fields ? fields->find("checksum") : nullptr;
    if (!name || !name->string() || !size || !size->integer() || !sum || !sum->integer())
      return Status::error("its list of files is damaged");
    files.push_back({*name->string(), static_cast<uint64_t>(*size->integer()), static_cast<uint64_t>(*sum->integer())});
  }
  return {};
}

}  // namespace

struct StateSaver::Lost {
  std::mutex mutex;
  Status why;
};

// One save with staging. The last of its threads makes it complete.
struct StateSaver::Job {
  io::CheckpointWriter writer;
  io::Manifest manifest;
  Clock::time_point begin;
  std::vector<io::Manifest::File> files;  // of this process's ranks, as are these:
  std::vector<Status> statuses;
  std::atomic<bool> stop = false;
  // Guarded by mutex_:
  size_t written = 0;  // ranks
  bool copied = false, done = false;
  double stalled = 0;
};

StateSaver::StateSaver(const StateAccess& state, Options options) : state_(state), options_(std::move(options)) {
  if (options_.staging == 0) return;
  for (int64_t rank = state.firstRank(); rank < state.firstRank() + state.localRanks(); ++rank)
    rings_.push_back(std::make_unique<StagingRing>(plan::stagingBytes(state.plan(), rank, options_.staging)));
  for (std::unique_ptr<WorkerThreads>* team : {&copiers_, &writers_}) {
    Expected<std::unique_ptr<WorkerThreads>> started =
        WorkerThreads::create("staging of saved states (--save-staging)", rings_.size());
    if (status_ = started.status(); !status_.ok()) return;
    *team = std::move(*started);
  }
  if (!state.processes()) return;
  lost_ = std::make_shared<Lost>();
  state.processes()->watch([lost = lost_](const Status& why) {
    std::lock_guard lock(lost->mutex);
    lost->why = why;
  });
}

StateSaver::~StateSaver() {
  stop();
}

void StateSaver::stop() {
  if (!job_) return;
  job_->stop = true;
  for (const auto& ring : rings_) ring->close();
  writers_->wait();
  job_.reset();
}

uint64_t StateSaver::stagingBytes() const {
  uint64_t bytes = 0;
  for (const auto& ring : rings_) bytes += ring->bytes();
  return bytes;
}

// The first error is the cause of the others.
void StateSaver::keep(const Status& status) {
  std::lock_guard lock(mutex_);
  if (status_.ok()) status_ = status;
}

Status StateSaver::status() const {
  std::lock_guard lock(mutex_);
  return status_;
}

std::optional<CompleteSave> StateSaver::takeComplete() {
  std::lock_guard lock(mutex_);
  if (complete_.empty()) return std::nullopt;
  CompleteSave first = std::move(complete_.front());
  complete_.erase(complete_.begin());
  return first;
}

// The end of the save under way.
Status StateSaver::await() {
  if (job_) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return job_->done; });
    lock.unlock();
    stop();
  }
  return status();
}

Status StateSaver::save(const RunPosition& position) {
  Status status = start(position);
  if (!status.ok()) keep(status);
  return status;
}

Status StateSaver::start(const RunPosition& position) {
  const Clock::time_point begin = Clock::now();
  SHEAF_RETURN_IF_ERROR(finish());
  if (rings_.empty()) {
    SHEAF_RETURN_IF_ERROR(saveState(state_, options_.folder, position));
    CompleteSave save{cat(options_.folder, "/", io::stepFolder(position.step)), position.step, 0, 0, {}};
    if (state_.first() && options_.committed) save.afterwards = options_.committed(position.step);
    save.stalled = save.seconds = secondsSince(begin);
    std::lock_guard lock(mutex_);
    complete_.push_back(std::move(save));
    return {};
  }
  Expected<io::CheckpointWriter> writer = openState(state_, options_.folder, position.step);
  if (!writer.ok()) return writer.status();
  const size_t ranks = rings_.size();
  job_.reset(new Job{.writer = std::move(*writer),
                     .manifest = manifestOf(state_.plan(), position),
                     .begin = begin,
                     .files = std::vector<io::Manifest::File>(ranks),
                     .statuses = std::vector<Status>(ranks)});
  for (const auto& ring : rings_) ring->open();
  writers_->start([this, job = job_.get()](size_t rank) { writeRank(*job, rank); });
  Status status = takeSnapshot();
  {
    std::lock_guard lock(mutex_);
    job_->stalled = secondsSince(begin);
    job_->copied = true;
    changed_.notify_all();
  }
  // The first error is the cause of the others.
  if (const Status first = this->status(); !first.ok()) status = first;
  return agreeOnStatus(state_.processes(), "the copies of the state", status);
}

Status StateSaver::takeSnapshot() {
  std::vector<Status> statuses(rings_.size());
  copiers_->runAll([&](size_t rank) { statuses[rank] = snapshot(rank); });
  for (const Status& status : statuses) SHEAF_RETURN_IF_ERROR(status);
  return {};
}

Status StateSaver::snapshot(size_t rank) {
  StagingRing& ring = *rings_[rank];
  const plan::Plan& plan = state_.plan();
  const int64_t number = state_.firstRank() + static_cast<int64_t>(rank);
  for (const plan::SavedPart& part : plan::savedParts(plan, number)) {
    const plan::Parameter& parameter = plan.parameters(part.parameter);
    const int bucket = static_cast<int>(parameter.bucket());
    const uint64_t size = state_.elementBytes(bucket, part.slot);
    for (uint64_t at = part.begin; at < part.end;) {
      const std::span<std::byte> room = ring.room((part.end - at) * size);
      if (room.empty()) return abandoned();
      if (Status status = state_.readOf(number, bucket, part.slot, parameter.offset() + at, room); !status.ok()) {
        keep(status);
        ring.close();
        return status;
      }
      ring.filled(room);
      at += room.size() / size;
    }
  }
  return {};
}

void StateSaver::writeRank(Job& job, size_t rank) {
  const int64_t number = state_.firstRank() + static_cast<int64_t>(rank);
  job.statuses[rank] = catchOutOfMemory("a saved state", [&]() -> Status {
    io::Manifest::File& file = job.files[rank];
    file.name = rankFile(number);
    Expected<io::SafetensorsWriter> writer = createRankFile(job.writer.path(file.name), state_.plan(), number);
    if (!writer.ok()) return writer.status();
    while (writer->remaining() > 0) {
      const std::span<const std::byte> bytes = rings_[rank]->take();
      if (bytes.empty()) return abandoned();
      SHEAF_RETURN_IF_ERROR(writer->write(bytes));
      rings_[rank]->taken();
    }
    SHEAF_RETURN_IF_ERROR(writer->commit());
    file.size = writer->size();
    file.checksum = writer->checksum();
    return {};
  });
  // What is copied would not be written: the copying ends. Of a ring that was closed the reason is known already.
  if (!job.statuses[rank].ok()) {
    keep(job.statuses[rank]);
    rings_[rank]->close();
  }
  std::unique_lock lock(mutex_);
  if (++job.written < rings_.size()) return;
  changed_.wait(lock, [&] { return job.copied; });  // save() always comes to this
  lock.unlock();
  complete(job);
}

// Process 0 commits when all processes have written their files; they say so in the folder, because the processes' own
// connection is in use by the steps meanwhile.
void StateSaver::complete(Job& job) {
  Status status;
  if (std::ranges::any_of(job.statuses, [](const Status& each) { return !each.ok(); })) status = this->status();
  if (state_.processes() && !state_.first()) {
    Expected<AtomicFile> file = AtomicFile::create(job.writer.path(partsName(state_.processes()->rank())));
    Status said = file.status();
    if (said.ok()) said = file->write(std::as_bytes(std::span<const char>(partsText(status, job.files))));
    if (said.ok()) said = file->commit();
    if (status.ok()) status = said;
  }
  if (status.ok() && state_.first()) {
    status = gatherParts(job);
    if (status.ok()) status = job.writer.commit(job.manifest);
  }
  CompleteSave save{cat(options_.folder, "/", io::stepFolder(job.manifest.step)), job.manifest.step, 0, 0, {}};
  if (status.ok() && state_.first() && options_.committed) save.afterwards = options_.committed(job.manifest.step);
  save.seconds = secondsSince(job.begin);
  if (!status.ok()) keep(status);
  std::lock_guard lock(mutex_);
  save.stalled = job.stalled;
  if (status.ok()) complete_.push_back(std::move(save));
  job.done = true;
  changed_.notify_all();
}

Status StateSaver::gatherParts(Job& job) {
  job.manifest.files = std::move(job.files);
  const int64_t processes = state_.processes() ? state_.processes()->size() : 1;
  for (int64_t process = 1; process < processes; ++process) {
    const std::string path = job.writer.path(partsName(process));
    Expected<MappedFile> file = MappedFile::open(path);
    for (; !file.ok(); file = MappedFile::open(path)) {
      if (job.stop) return abandoned();
      {
        std::lock_guard lock(lost_->mutex);
        SHEAF_RETURN_IF_ERROR(lost_->why);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    if (Status status =
            parseParts({reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()}, job.manifest.files);
        !status.ok())
      return Status::error(cat(state_.processes()->describe(process), ": ", status.message()));
    if (std::remove(path.c_str()) != 0) return Status::error(cat("cannot remove ", path));
  }
  return {};
}

Status StateSaver::finish() {
  const Status mine = await();
  return rings_.empty() ? mine : agreeOnStatus(state_.processes(), "the saved states", mine);
}

}  // namespace sheaf::exec
