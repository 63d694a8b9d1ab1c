// Timing one library call on the CPU device.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "test/runtime/DeviceTesting.h"

namespace sheaf::bench {

// A call on operands of its own, filled with small numbers, open on the device.
class CallBench {
 public:
  CallBench(const plan::AnyCall& call, int threads) {
    std::vector<plan::Operand> operands;
    for (const plan::OperandNeed& need : plan::operandsOf(call))
      operands.push_back(builder_.operand(builder_.buffer(need.bytes), need.access));
    builder_.call(call, operands);
    check(plan::checkLibraryCall(builder_.plan.body(0), builder_.plan.max_threads()));
    DeviceOptions options;
    options.threadsPerRank = threads;
    if (!testing::testDevice()) std::exit(1);
    auto contexts = testing::testDevice()->open(builder_.plan, options);
    check(contexts.status());
    context_ = std::move((*contexts)[0]);
    testing::Numbers numbers(1);
    for (size_t i = 0; i < operands.size(); ++i) {
      std::vector<float> values = numbers.reals(operands[i].bytes() / sizeof(float));
      check(context_->write(builder_.plan.buffers(i).offset(), std::as_bytes(std::span(values))));
    }
  }

  // The median of the seconds a run takes, of at least `runs` and a tenth of a second.
  double seconds(int runs = 7) {
    std::vector<double> times;
    double sum = 0;
    for (int i = 0; i < runs || (sum < 0.1 && i < 1000); ++i) {
      times.push_back(once());
      sum += times.back();
    }
    return median(std::move(times));
  }

  // The seconds of one run.
  double once() {
    const auto start = std::chrono::steady_clock::now();
    check(context_->issue(builder_.plan.body(0), nullptr));
    check(context_->synchronize());
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  static double median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
    return values[values.size() / 2];
  }

 private:
  static void check(const Status& status) {
    if (status.ok()) return;
    std::fprintf(stderr, "%s\n", status.message().c_str());
    std::exit(1);
  }

  testing::PlanBuilder builder_;
  std::unique_ptr<RankContext> context_;
};

}  // namespace sheaf::bench
