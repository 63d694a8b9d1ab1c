#include <emmintrin.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstring>
#include <memory>
#include <vector>

#include "runtime/base/Text.h"
#include "runtime/base/Threads.h"
#include "runtime/comm/process/ProcessGroup.h"
#include "runtime/measure/MeasureParts.h"

namespace sheaf::measure {
namespace {

using Clock = std::chrono::steady_clock;

// Weight, both moments and gradient in f32: read, and all but the gradient written.
constexpr double kUpdateBytes = 7 * sizeof(float);
// What all threads of a node update, more than caches hold, and the least of a thread.
constexpr size_t kElements = size_t{16} << 20, kLeastElements = size_t{1} << 18;
constexpr int kRepetitions = 9;

// A thread's part of an optimizer's state.
struct Part {
  explicit Part(size_t elements) : count(elements / 4 * 4), values(std::make_unique_for_overwrite<float[]>(4 * count)) {
    // First touched by the thread that updates it, so that it lies near its processor.
    for (size_t i = 0; i < 4 * count; ++i) values[i] = 0.5F + static_cast<float>(i % 97) / 128;
  }
  // Adam, four elements at a time.
  void update() {
    float *w = values.get(), *m = w + count, *v = m + count;
    const float* g = v + count;
    const __m128 beta1 = _mm_set1_ps(0.9F), rest1 = _mm_set1_ps(0.1F), beta2 = _mm_set1_ps(0.95F),
                 rest2 = _mm_set1_ps(0.05F), rate = _mm_set1_ps(1e-4F), epsilon = _mm_set1_ps(1e-8F);
    for (size_t i = 0; i < count; i += 4) {
      const __m128 gradient = _mm_loadu_ps(g + i);
      const __m128 first = _mm_add_ps(_mm_mul_ps(beta1, _mm_loadu_ps(m + i)), _mm_mul_ps(rest1, gradient));
      const __m128 second =
          _mm_add_ps(_mm_mul_ps(beta2, _mm_loadu_ps(v + i)), _mm_mul_ps(rest2, _mm_mul_ps(gradient, gradient)));
      const __m128 step = _mm_div_ps(_mm_mul_ps(rate, first), _mm_add_ps(_mm_sqrt_ps(second), epsilon));
      _mm_storeu_ps(m + i, first);
      _mm_storeu_ps(v + i, second);
      _mm_storeu_ps(w + i, _mm_sub_ps(_mm_loadu_ps(w + i), step));
    }
  }
  const size_t count;
  const std::unique_ptr<float[]> values;
};

// Elements a second of so many threads at once, each with a part of so many: the median of some repetitions.
Expected<double> updateRate(int64_t threads, size_t each) {
  std::vector<double> seconds;
  Clock::time_point begin;
  // Ends a repetition, and begins the next one. The first warms up.
  std::barrier turn(threads, [&, repetition = 0]() mutable noexcept {
    const Clock::time_point now = Clock::now();
    if (repetition > 1) seconds.push_back(std::chrono::duration<double>(now - begin).count());
    begin = now;
    ++repetition;
  });
  Expected<std::unique_ptr<WorkerThreads>> workers =
      WorkerThreads::create("updates on the host", static_cast<size_t>(threads));
  if (!workers.ok()) return workers.status();
  (*workers)->runAll([&](size_t) {
    Part part(each);
    turn.arrive_and_wait();
    for (int repetition = 0; repetition <= kRepetitions; ++repetition) {
      part.update();
      turn.arrive_and_wait();
    }
  });
  std::nth_element(seconds.begin(), seconds.begin() + kRepetitions / 2, seconds.end());
  return static_cast<double>(threads) * static_cast<double>(each) / seconds[kRepetitions / 2];
}

}  // namespace

Status measureHostUpdates(const MeasureOptions& options, profile::ProfileData& data) {
  // The processes of a node share its cores, and measure at the same time.
  const int64_t processes = options.processes ? options.ranksPerNode : 1;
  const int64_t threads = std::max<int64_t>(options.cores / processes, 1);
  if (options.processes) {
    Expected<std::vector<std::string>> ready = options.processes->allGather("", "updates on the host");
    if (!ready.ok()) return ready.status();
  }
  const Expected<double> measured =
      updateRate(threads, std::max(kElements / static_cast<size_t>(threads * processes), kLeastElements));
  if (!measured.ok()) return measured.status();
  double rate = *measured;
  if (options.processes) {
    Expected<std::vector<std::string>> all = options.processes->allGather(
        std::string(reinterpret_cast<const char*>(&rate), sizeof rate), "updates on the host");
    if (!all.ok()) return all.status();
    for (const std::string& theirs : *all) {
      double other;
      if (theirs.size() != sizeof other) return Status::error("another process sent no rate of updates on the host");
      std::memcpy(&other, theirs.data(), sizeof other);
      rate = std::min(rate, other);
    }
  }
  data.hostUpdates = rate * static_cast<double>(processes);
  data.hostUpdatesSource =
      cat("measured: Adam in f32 by ", threads, threads == 1 ? " thread" : " threads",
          processes == 1 ? "" : cat(" of each of ", processes, " processes"), ", four elements at a time");
  if (const double bytes = kUpdateBytes * data.hostUpdates; bytes > data.hostBandwidth)
    data.hostBandwidth = bytes, data.hostSource = "measured, at least: what updates on the host read and write";
  return {};
}

}  // namespace sheaf::measure
