#include "runtime/exec/RunLog.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/base/NewFiles.h"
#include "runtime/base/Text.h"

namespace sheaf::exec {
namespace {

// Null where there is none.
void setNumber(json::Object& object, const char* name, const std::optional<double>& number) {
  if (number)
    object.set(name, *number);
  else
    object.set(name, json::Value());
}

}  // namespace

Expected<RunLog> RunLog::open(Paths paths, bool resumed) {
  RunLog log;
  log.paths_ = std::move(paths);
  if (const std::string& path = log.paths_.lines; !path.empty()) {
    const int descriptor = openLog(path);
    if (descriptor >= 0) log.lines_.reset(fdopen(descriptor, "a"));
    if (!log.lines_) return Status::error(cat("--log: cannot write ", path, ": ", std::strerror(errno)));
    struct stat info {};
    log.keepsLines_ = !resumed && ::fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0;
  }
  if (!log.paths_.folder.empty()) {
    Expected<io::EventFile> events = io::EventFile::create(log.paths_.folder);
    if (!events.ok()) return Status::error(cat("--log-dir: ", events.status().message()));
    log.events_ = std::move(*events);
  }
  return log;
}

void RunLog::begin(const std::string& planPath, const plan::Plan& plan, int64_t step) {
  if (std::exchange(keepsLines_, false)) (void)::ftruncate(::fileno(lines_.get()), 0);
  throughput_.emplace(plan);
  if (events_) keep("--log-dir", events_->start(step));
  if (paths_.metrics.empty()) return;
  metrics_ = std::make_unique<MetricsFile>(paths_.metrics, planPath, plan, step);
  keep("--metrics-file", metrics_->write());
}

void RunLog::keep(const char* option, const Status& status) {
  if (error_.ok() && !status.ok()) error_ = Status::error(cat(option, ": ", status.message()));
}

void RunLog::line(json::Object object) {
  if (!lines_ || keepsLines_) return;
  std::string text = json::write(std::move(object)) + "\n";
  // Each line is written at once, so that a reader of the growing file never sees half a line.
  if (std::fwrite(text.data(), 1, text.size(), lines_.get()) != text.size() || std::fflush(lines_.get()) != 0)
    keep("--log", Status::error(cat("cannot write ", paths_.lines, ": ", std::strerror(errno))));
}

void RunLog::step(const StepResult& result, uint64_t residentBytes) {
  json::Object object{{"step", result.step},
                      {"loss", result.loss},
                      {"grad_norm", result.hasNorm ? json::Value(result.gradientNorm) : json::Value()},
                      {"lr", result.learningRate},
                      {"seconds", result.seconds}};
  if (result.lossScale) object.set("loss_scale", *result.lossScale);
  if (result.skipped) object.set("skipped", true);
  line(std::move(object));
  if (events_) {
    io::EventFile::Scalars scalars{{"train/loss", result.loss}, {"train/lr", result.learningRate}};
    if (result.hasNorm) scalars.emplace_back("train/grad_norm", result.gradientNorm);
    if (result.lossScale) scalars.emplace_back("train/loss_scale", *result.lossScale);
    if (result.seconds > 0 && throughput_)
      scalars.emplace_back(cat("train/", throughput_->unit, "_per_second"), throughput_->perStep / result.seconds);
    scalars.emplace_back("memory/resident_bytes", static_cast<double>(residentBytes));
    keep("--log-dir", events_->write(result.step, scalars));
  }
  if (metrics_) keep("--metrics-file", metrics_->step(result, residentBytes));
}

void RunLog::evaluation(int64_t step, const EvaluationResult& result) {
  json::Object fields{{"step", step}};
  setNumber(fields, "loss", result.loss);
  setNumber(fields, "perplexity", result.perplexity);
  setNumber(fields, "accuracy", result.accuracy);
  fields.set("rows", static_cast<int64_t>(result.rows));
  fields.set("seconds", result.seconds);
  event("eval", std::move(fields));
  if (events_) {
    io::EventFile::Scalars scalars;
    if (result.loss) scalars.emplace_back("eval/loss", *result.loss);
    if (result.perplexity) scalars.emplace_back("eval/perplexity", *result.perplexity);
    if (result.accuracy) scalars.emplace_back("eval/accuracy", *result.accuracy);
    keep("--log-dir", events_->write(step, scalars));
  }
  if (metrics_) keep("--metrics-file", metrics_->evaluation(result));
}

void RunLog::event(const std::string& name, json::Object fields) {
  json::Object object{{"event", name}};
  for (const json::Member& member : fields.members()) object.set(member.first, member.second);
  line(std::move(object));
}

void RunLog::end() {
  if (metrics_) keep("--metrics-file", metrics_->end());
}

}  // namespace sheaf::exec
