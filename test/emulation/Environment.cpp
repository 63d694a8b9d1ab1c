// The environment of processes that threads play. Each real process has one of its own and changes it before NCCL and
// CUDA have threads; here they share one, and one may add a variable, which moves the list, while another reads it. The
// linker sends the library's calls of getenv and setenv here (--wrap), which makes them one at a time. A value that was
// read stays valid: the C library frees none.
#include <mutex>

extern "C" {
char* __real_getenv(const char* name);
int __real_setenv(const char* name, const char* value, int overwrite);
char* __wrap_getenv(const char* name);
int __wrap_setenv(const char* name, const char* value, int overwrite);
}

namespace {

std::mutex& environmentMutex() {
  static std::mutex& mutex = *new std::mutex;
  return mutex;
}

}  // namespace

char* __wrap_getenv(const char* name) {
  std::lock_guard lock(environmentMutex());
  return __real_getenv(name);
}

int __wrap_setenv(const char* name, const char* value, int overwrite) {
  std::lock_guard lock(environmentMutex());
  return __real_setenv(name, value, overwrite);
}
