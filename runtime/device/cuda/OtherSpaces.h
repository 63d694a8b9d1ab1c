// Host memory and files of the ranks of a process, and what moves bytes between them and the GPU.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "runtime/base/Status.h"
#include "runtime/device/cpu/FileArena.h"
#include "runtime/device/cuda/FileStream.h"
#include "runtime/device/cuda/HostArena.h"

namespace sheaf::cuda {

struct World;

// A rank's, as far as its plan has buffers there.
struct OtherSpaces {
  std::unique_ptr<HostArena> host;
  std::unique_ptr<cpu::FileArena> files;
  std::map<uint32_t, std::unique_ptr<FileStream>> fileStreams;  // by the plan's streams
};

// Makes World.spaces. Memory is pinned on the NUMA node of the GPU; an abort ends what waits for files.
Status openSpaces(World& world);
// How large it is and where, and how files are read and written, for the log.
void describeSpaces(const World& world,
                    const std::function<void(const std::string& name, const std::string& value)>& note);

}  // namespace sheaf::cuda
