// Measures a disk for the simulator: reads and writes as the files of a plan with offload are read and written.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/profile/Profile.h"

namespace sheaf::measure {

struct DiskOptions {
  std::string folder;
  uint64_t bytes = uint64_t{1} << 30;           // of the file, or a quarter of what is free, if that is less
  double seconds = 1;                           // at least, for each size of request and direction
  std::function<Status()> checkInterrupt = {};  // optional; called between requests; an error ends the measurement
};

struct DiskCosts {
  // Of read_file and write_file: the latency of the smallest request, and the bandwidth by bytes of a transfer, which
  // is made of requests of at most 8 MiB, one after the other.
  std::vector<profile::TransferCost> transfers;
  // Of what makes a step durable after its last write: a sync of the file, and the write and sync of a record of 4 KiB.
  profile::PersistCost persist;
  bool direct = false;  // without the page cache
};

// The files are removed. The sources say how it was measured, and with the page cache where the file system refuses to
// go without.
Expected<DiskCosts> measureDisk(const DiskOptions& options);

}  // namespace sheaf::measure
