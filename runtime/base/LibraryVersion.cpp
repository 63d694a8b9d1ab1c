// The version of a shared library of the runtime, which is compiled into each: see runtime/exec/LoadedLibrary.h.
extern "C" __attribute__((visibility("default"))) const char* sheaf_library_version() {
  return SHEAF_VERSION;
}
