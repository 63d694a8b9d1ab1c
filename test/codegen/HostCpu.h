// The processor that tests compile kernels for.
#pragma once

#include <cstdlib>
#include <string>

namespace sheaf::test {

// Returns "host", or the processor that test/check.py limits the tests to (make test CPU=avx2).
inline std::string hostCpu() {
  const char* limit = std::getenv("SHEAF_TEST_CPU");
  return limit ? limit : "host";
}

}  // namespace sheaf::test
