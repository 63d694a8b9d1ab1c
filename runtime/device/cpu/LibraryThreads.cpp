#include "runtime/device/cpu/LibraryThreads.h"

#include <omp.h>

namespace sheaf::cpu {

void useOneLibraryThread() {
  omp_set_num_threads(1);
}

}  // namespace sheaf::cpu
