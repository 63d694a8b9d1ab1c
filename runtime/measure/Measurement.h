// Measures the machine, or the GPUs, that ranks run on, and makes its profile. `sheaf profile` links this,
// `sheaf-run --measure` loads it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/device/Device.h"
#include "runtime/plan/Probe.h"
#include "runtime/profile/Profile.h"

namespace sheaf::measure {

struct MeasureOptions {
  std::string name;
  std::string machine;       // description
  uint64_t memoryBytes = 0;  // of a rank's device, or of the machine whose cores the ranks share
  std::string memorySource;
  plan::Plan kernels;  // kernels and images
  std::vector<plan::SampleKernel> samples;
  std::function<void(const std::string& what)> progress;
  std::function<Status()> checkInterrupt;  // optional; called between repetitions; an error ends the measurement

  std::string disk;  // folder on a disk that is measured, too, by one process of the job; empty: none

  // On CPUs the ranks share the cores. Collectives are measured for the powers of two below this number and for it.
  int64_t ranks = 1;
  int64_t threads = 0;  // of a rank; 0: powers of two up to the cores
  int64_t cores = 1;    // of the machine

  // On GPUs, `ranks` is the number of the job's ranks: one per process and GPU, or all in one process.
  bool gpu = false;
  comm::ProcessGroup* processes = nullptr;  // null for one process; consecutive processes share a node
  int64_t ranksPerNode = 1;
  bool graphs = true;  // as in DeviceOptions
  plan::Training::ReduceOrder reduceOrder = plan::Training::TREE;
  std::string products;  // as there; the file must exist
  std::function<void()> aborted;
  std::function<void(const std::string& why)> abandon;
};

// In a job of several processes, all of them call this together and get the same profile, but for the disk.
Expected<profile::Profile> measureMachine(Device& device, const MeasureOptions& options);
// Returns the text of the profile's file.
Expected<std::string> measureProfile(Device& device, const MeasureOptions& options);

// The type of measureProfile(), which libsheaf_measure.so exports as sheaf_measure_profile (extern "C").
using MeasureProfile = Expected<std::string> (*)(Device& device, const MeasureOptions& options);

}  // namespace sheaf::measure
