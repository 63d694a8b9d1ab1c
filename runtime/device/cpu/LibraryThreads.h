// oneDNN's own parallelism.
#pragma once

namespace sheaf::cpu {

// Makes the calling thread run oneDNN without threads of its own: the parallelism is ours (ComputePool), and OpenMP
// pools inside rank threads would fight over the cores. Every thread that may call oneDNN calls this once.
void useOneLibraryThread();

}  // namespace sheaf::cpu
