#include "runtime/exec/MetricsFile.h"

#include <cmath>
#include <span>
#include <utility>

#include "runtime/base/AtomicFile.h"
#include "runtime/base/Text.h"

namespace sheaf::exec {
namespace {

// A label's value: backslashes, quotes and line ends are escaped.
std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '\n') {
      result += "\\n";
      continue;
    }
    if (c == '\\' || c == '"') result += '\\';
    result += c;
  }
  return result;
}

std::string numberText(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

}  // namespace

MetricsFile::MetricsFile(std::string path, const std::string& planPath, const plan::Plan& plan, int64_t step)
    : path_(std::move(path)),
      labels_(cat("{plan=\"", escaped(planPath), "\",model=\"", escaped(plan.model()), "\"}")),
      throughput_(plan),
      stepsDone_(step) {}

Status MetricsFile::step(const StepResult& result, uint64_t residentBytes) {
  latest_ = result;
  stepsDone_ = result.step + 1;
  skipped_ += result.skipped;
  residentBytes_ = residentBytes;
  lastStepTime_ = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return Clock::now() - written_ < std::chrono::seconds(1) ? Status() : write();
}

Status MetricsFile::evaluation(const EvaluationResult& result) {
  evaluated_ = result;
  return write();
}

Status MetricsFile::end() {
  running_ = false;
  return write();
}

Status MetricsFile::write() {
  std::string text;
  auto metric = [&](const std::string& name, const char* type, const std::string& help, double value) {
    text += cat("# HELP sheaf_", name, " ", help, "\n# TYPE sheaf_", name, " ", type, "\nsheaf_", name, labels_, " ",
                numberText(value), "\n");
  };
  metric("running", "gauge", "1 while the run trains or evaluates, 0 after its end.", running_);
  metric("steps_total", "counter", "Steps of the training, those before a resumed state included.",
         static_cast<double>(stepsDone_));
  metric("skipped_steps_total", "counter", "Steps of this run whose update was skipped.",
         static_cast<double>(skipped_));
  if (latest_) {
    metric("loss", "gauge", "Loss of the latest step.", latest_->loss);
    if (latest_->hasNorm) metric("gradient_norm", "gauge", "Gradient norm of the latest step.", latest_->gradientNorm);
    metric("learning_rate", "gauge", "Learning rate of the latest step.", latest_->learningRate);
    if (latest_->lossScale) metric("loss_scale", "gauge", "Loss scale of the latest step.", *latest_->lossScale);
    metric("step_seconds", "gauge", "Seconds that the latest step took.", latest_->seconds);
    if (latest_->seconds > 0)
      metric(cat(throughput_.unit, "_per_second"), "gauge", cat("Rate of the latest step, of all ranks."),
             throughput_.perStep / latest_->seconds);
    metric("last_step_timestamp_seconds", "gauge", "When the latest step ended, in seconds since 1970.", lastStepTime_);
    metric("resident_bytes", "gauge", "Memory of the first process, without mapped files.",
           static_cast<double>(residentBytes_));
  }
  if (evaluated_) {
    if (evaluated_->loss) metric("eval_loss", "gauge", "Loss of the latest evaluation.", *evaluated_->loss);
    if (evaluated_->accuracy)
      metric("eval_accuracy", "gauge", "Accuracy of the latest evaluation.", *evaluated_->accuracy);
    if (evaluated_->perplexity)
      metric("eval_perplexity", "gauge", "Perplexity of the latest evaluation.", *evaluated_->perplexity);
  }
  Expected<AtomicFile> file = AtomicFile::create(path_);
  if (!file.ok()) return file.status();
  SHEAF_RETURN_IF_ERROR(file->write(std::as_bytes(std::span(text))));
  written_ = Clock::now();
  return file->commit();
}

}  // namespace sheaf::exec
