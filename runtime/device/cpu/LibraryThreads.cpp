#include "runtime/device/cpu/LibraryThreads.h"

#include <malloc.h>
#include <omp.h>

namespace sheaf::cpu {

void useOneLibraryThread() {
  omp_set_num_threads(1);
}

void keepLibraryMemory() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

}  // namespace sheaf::cpu
