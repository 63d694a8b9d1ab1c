#include "test/fuzz/Runner.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <new>
#include <thread>

#include "runtime/base/Hash.h"

namespace sheaf::fuzz {
namespace {

constexpr int kTooMuchMemory = 90;
constexpr uint64_t kInputsPerChild = 1000;  // a fresh process now and then: what libraries keep does not add up
constexpr uint64_t kMostFindings = 20;      // of one target; then it is given up
constexpr long kShownBytes = 3000;
constexpr double kPatience = 10;  // times as much wall time as processor time may an input take

using Clock = std::chrono::steady_clock;

// Processor time of a process; 0 if it is not there.
double cpuSeconds(pid_t process) {
  clockid_t clock;
  timespec time{};
  if (clock_getcpuclockid(process, &clock) != 0 || clock_gettime(clock, &time) != 0) return 0;
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// What a child reports to its parent while it works.
struct Progress {
  std::atomic<uint64_t> input;
  std::atomic<int64_t> begin;           // of that input, in the clock's ticks
  std::atomic<double> beginCpu;         // of that input, in seconds of the child's processor time
  std::atomic<uint64_t> residentBytes;  // most of any child so far
};

struct Range {
  const Target* target = nullptr;
  uint64_t begin = 0, end = 0;
};

class Child {
 public:
  explicit Child(const RunnerOptions& options) : options_(options) {
    void* shared = mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    progress_ = new (shared) Progress;
  }
  ~Child() { munmap(progress_, sizeof(Progress)); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  bool busy() const { return pid_ > 0; }
  uint64_t residentBytes() const { return progress_->residentBytes; }

  void start(const Range& range) {
    range_ = range;
    progress_->input = range.begin;
    progress_->begin = Clock::now().time_since_epoch().count();
    progress_->beginCpu = 0;
    said_ = memfd_create("stderr", 0);
    fcntl(said_, F_SETFL, O_APPEND);
    std::fflush(stdout);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(said_, STDERR_FILENO);
      _exit(work());
    }
  }

  // Looks whether the child has ended or hangs. Returns whether there was a finding; what is left of its range is in
  // `rest`.
  bool check(Range& rest) {
    rest = {};
    int status = 0;
    const char* what = nullptr;
    char text[64];
    if (waitpid(pid_, &status, WNOHANG) == 0) {
      // Of a machine that is busy with other work a child may get little: time it did not get does not count at once.
      auto taken = Clock::duration(Clock::now().time_since_epoch().count() - progress_->begin);
      const double wall = std::chrono::duration<double>(taken).count(), limit = options_.secondsPerInput;
      if (wall < limit || (wall < kPatience * limit && cpuSeconds(pid_) - progress_->beginCpu < limit)) return false;
      kill(pid_, SIGKILL);
      waitpid(pid_, &status, 0);
      what = "hangs";
    } else if (WIFSIGNALED(status)) {
      std::snprintf(text, sizeof text, "crashes with signal %d", WTERMSIG(status));
      what = text;
    } else if (WEXITSTATUS(status) == kTooMuchMemory) {
      what = "takes too much memory";
    } else if (WEXITSTATUS(status) != 0) {
      std::snprintf(text, sizeof text, "ends the process with exit %d", WEXITSTATUS(status));
      what = text;
    }
    pid_ = 0;
    if (what) {
      std::printf("%s: input %lu %s; again with: sheaf-fuzz --only %s --seed %lu --first %lu --runs 1\n",
                  range_.target->name.c_str(), progress_->input.load(), what, range_.target->name.c_str(),
                  options_.seed, progress_->input.load());
      showStderr();
      rest = {range_.target, progress_->input + 1, range_.end};
    }
    close(said_);
    return what != nullptr;
  }

 private:
  int work() {
    for (uint64_t input = range_.begin; input < range_.end; ++input) {
      progress_->begin = Clock::now().time_since_epoch().count();
      progress_->beginCpu = cpuSeconds(0);
      progress_->input = input;
      (void)!ftruncate(STDERR_FILENO, 0);  // what is shown of a finding is what its own input led to
      Random random(options_.seed * 0x9e3779b97f4a7c15 ^ xxh64(range_.target->name) ^ (input << 20));
      random.next();
      range_.target->run(random);
      rusage usage{};
      getrusage(RUSAGE_SELF, &usage);
      const uint64_t resident = static_cast<uint64_t>(usage.ru_maxrss) * 1024;
      if (resident > progress_->residentBytes) progress_->residentBytes = resident;
      if (resident > options_.residentBytes) return kTooMuchMemory;
    }
    return 0;
  }

  void showStderr() const {
    off_t size = lseek(said_, 0, SEEK_END);
    char text[kShownBytes];
    off_t from = std::max<off_t>(0, size - kShownBytes);
    ssize_t got = pread(said_, text, sizeof text, from);
    if (got > 0) std::fwrite(text, 1, static_cast<size_t>(got), stdout);
  }

  const RunnerOptions& options_;
  Progress* progress_;
  Range range_;
  pid_t pid_ = 0;
  int said_ = -1;
};

}  // namespace

uint64_t runTargets(const std::vector<Target>& targets, const RunnerOptions& options) {
  uint64_t shares = 0, findings = 0;
  for (const Target& target : targets) shares += target.share;
  for (const Target& target : targets) {
    auto begin = Clock::now();
    uint64_t before = findings, count = std::max<uint64_t>(1, options.runs * target.share / shares);
    std::vector<Range> waiting;
    for (uint64_t i = 0; i < count; i += kInputsPerChild)
      waiting.push_back({&target, options.first + i, options.first + std::min(count, i + kInputsPerChild)});
    std::reverse(waiting.begin(), waiting.end());
    std::vector<std::unique_ptr<Child>> children;
    for (unsigned i = 0; i < std::max(1u, options.jobs); ++i) children.push_back(std::make_unique<Child>(options));
    for (bool busy = true; busy;) {
      busy = false;
      for (auto& child : children) {
        if (child->busy()) {
          Range rest;
          findings += child->check(rest);
          if (rest.begin < rest.end) waiting.push_back(rest);
        }
        if (findings - before >= kMostFindings) waiting.clear();
        if (!child->busy() && !waiting.empty()) {
          child->start(waiting.back());
          waiting.pop_back();
        }
        busy |= child->busy();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    uint64_t resident = 0;
    for (const auto& child : children) resident = std::max(resident, child->residentBytes());
    std::printf("%-12s %8lu inputs, %lu findings, %.0f s, %lu MiB resident at most\n", target.name.c_str(), count,
                findings - before, std::chrono::duration<double>(Clock::now() - begin).count(), resident >> 20);
    std::fflush(stdout);
  }
  return findings;
}

}  // namespace sheaf::fuzz
