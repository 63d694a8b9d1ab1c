// Host memory and files of the ranks of a process, what moves bytes between them and the GPU, and what computes there.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "runtime/base/Status.h"
#include "runtime/device/cpu/DurableState.h"
#include "runtime/device/cuda/FilePersist.h"
#include "runtime/device/cuda/FileStream.h"
#include "runtime/device/cuda/HostArena.h"
#include "runtime/device/cuda/HostCompute.h"

namespace sheaf::cuda {

struct World;

// A rank's, as far as its plan has buffers there.
struct OtherSpaces {
  std::unique_ptr<HostArena> host;
  std::unique_ptr<cpu::FileArena> files;
  std::unique_ptr<cpu::DurableState> durable;  // of the files
  std::unique_ptr<FilePersist> persist;        // null if the plan has none; a stream's thread may be in it
  // By the plan's streams, those that have transfers of files, and those that have launches on the host.
  std::map<uint32_t, std::unique_ptr<FileStream>> fileStreams;
  std::map<uint32_t, std::unique_ptr<HostCompute>> hostComputes;
};

// Makes World.spaces. Memory is pinned on the NUMA node of the GPU; an abort ends what waits for the host.
Status openSpaces(World& world);
// How large it is and where, how files are read and written, and how many threads of a rank compute on the host, for
// the log.
void describeSpaces(const World& world,
                    const std::function<void(const std::string& name, const std::string& value)>& note);

}  // namespace sheaf::cuda
