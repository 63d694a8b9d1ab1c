#include "runtime/exec/RunLog.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/base/Text.h"

namespace sheaf::exec {

Expected<RunLog> RunLog::open(const std::string& path, bool append) {
  RunLog log;
  if (path.empty()) return log;
  log.path_ = path;
  log.file_ = std::fopen(path.c_str(), append ? "ae" : "we");
  if (!log.file_) return Status::error(cat("--log: cannot write ", path, ": ", std::strerror(errno)));
  return log;
}

RunLog::RunLog(RunLog&& other) noexcept {
  *this = std::move(other);
}

RunLog& RunLog::operator=(RunLog&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(path_, other.path_);
  std::swap(error_, other.error_);
  return *this;
}

RunLog::~RunLog() {
  if (file_) std::fclose(file_);
}

void RunLog::line(json::Object object) {
  if (!file_) return;
  std::string text = json::write(std::move(object)) + "\n";
  // Each line is written at once, so that a reader of the growing file never sees half a line.
  if (std::fwrite(text.data(), 1, text.size(), file_) != text.size() || std::fflush(file_) != 0)
    if (!error_) error_ = errno;
}

void RunLog::step(const StepResult& result) {
  json::Object object{{"step", result.step},
                      {"loss", result.loss},
                      {"grad_norm", result.hasNorm ? json::Value(result.gradientNorm) : json::Value()},
                      {"lr", result.learningRate},
                      {"seconds", result.seconds}};
  if (result.lossScale) object.set("loss_scale", *result.lossScale);
  if (result.skipped) object.set("skipped", true);
  line(std::move(object));
}

void RunLog::event(const std::string& name, json::Object fields) {
  json::Object object{{"event", name}};
  for (const json::Member& member : fields.members()) object.set(member.first, member.second);
  line(std::move(object));
}

Status RunLog::status() const {
  return error_ ? Status::error(cat("--log: cannot write ", path_, ": ", std::strerror(error_))) : Status();
}

}  // namespace sheaf::exec
