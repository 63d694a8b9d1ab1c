// oneDNN's own parallelism.
#pragma once

namespace sheaf::cpu {

// Makes the calling thread run oneDNN without threads of its own: the parallelism is ours (ComputePool), and OpenMP
// pools inside rank threads would fight over the cores. Every thread that may call oneDNN calls this once.
void useOneLibraryThread();

// Keeps what oneDNN frees for its next call, process-wide. It packs operands into buffers of megabytes that it
// allocates at every call; given back to the kernel, their pages would be cleared again each time: 12 % of a step,
// measured.
void keepLibraryMemory();

}  // namespace sheaf::cpu
