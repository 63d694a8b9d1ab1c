#include "test/emulation/Devices.h"

#include <cuda_runtime_api.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "runtime/base/Text.h"
#include "test/emulation/Memory.h"

namespace sheaf::emulation {
namespace {

// The machine's devices that this process sees, as CUDA_VISIBLE_DEVICES lists them: an index that is not one ends the
// list (CUDA Programming Guide, "CUDA Environment Variables"). A variable of its own, because the host's own GPUs have
// nothing to do with these.
std::vector<int> visibleDevices() {
  const int count = integerFromEnvironment("SHEAF_EMULATED_DEVICES", 1);
  const char* listed = std::getenv("SHEAF_EMULATED_VISIBLE_DEVICES");
  std::vector<int> devices;
  if (!listed) {
    for (int i = 0; i < count; ++i) devices.push_back(i);
    return devices;
  }
  std::istringstream text(listed);
  for (std::string one; std::getline(text, one, ',');) {
    char* end = nullptr;
    const long index = std::strtol(one.c_str(), &end, 10);
    if (one.empty() || *end || index < 0 || index >= count) break;
    devices.push_back(static_cast<int>(index));
  }
  return devices;
}

int devices() {
  return static_cast<int>(visibleDevices().size());
}

thread_local int current = 0;
thread_local bool chosen = false;  // by cudaSetDevice

// The devices of which this process has a context. At most SHEAF_EMULATED_CONTEXTS: 1 for a process of one rank.
void addContext(int device) {
  thread_local int known = -1;
  if (std::exchange(known, device) == device) return;
  static std::mutex mutex;
  static auto& contexts = *new std::set<int>;
  std::lock_guard lock(mutex);
  contexts.insert(device);
  if (static_cast<int>(contexts.size()) > integerFromEnvironment("SHEAF_EMULATED_CONTEXTS", INT_MAX))
    brokeRule(cat("a context is made on device ", device, ", and the process has one on another"));
}

}  // namespace

int integerFromEnvironment(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  return value ? std::atoi(value) : otherwise;
}

void brokeRule(const std::string& rule) {
  std::fprintf(stderr, "emulated CUDA: %s\n", rule.c_str());
  std::abort();
}

int currentDevice() {
  return current;
}

int machineDevice(int device) {
  const std::vector<int> visible = visibleDevices();
  return static_cast<size_t>(device) < visible.size() ? visible[static_cast<size_t>(device)] : device;
}

void useContext(const char* function) {
  if (!chosen && devices() > 1)
    brokeRule(cat(function, " is called by a thread that has chosen none of ", devices(),
                  " devices: it makes a context on device 0"));
  addContext(current);
}

void useContext(const char* function, int device) {
  useContext(function);
  if (device != current)
    brokeRule(cat(function, " is given what belongs to device ", device, " by a thread of device ", current,
                  ", on which it makes a context"));
}

int deviceArchitecture() {
  return integerFromEnvironment("SHEAF_EMULATED_ARCHITECTURE", 90);  // an H100's
}

int driverVersion() {
  return integerFromEnvironment("SHEAF_EMULATED_DRIVER", CUDART_VERSION);
}

}  // namespace sheaf::emulation

using namespace sheaf::emulation;

extern "C" {

// A runtime needs a driver of its major version at least (CUDA Compatibility, "Minor Version Compatibility").
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  if (driverVersion() / 1000 < CUDART_VERSION / 1000) return cudaErrorInsufficientDriver;
  *count = devices();
  return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= devices()) return cudaErrorInvalidDevice;
  current = device;
  chosen = true;
  addContext(device);
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = current;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= devices()) return cudaErrorInvalidDevice;
  *properties = {};
  std::strcpy(properties->name, "Emulated GPU");
  properties->uuid.bytes[0] = static_cast<char>(machineDevice(device));
  properties->major = deviceArchitecture() / 10;
  properties->minor = deviceArchitecture() % 10;
  properties->multiProcessorCount = 4;
  properties->warpSize = 32;
  properties->sharedMemPerBlockOptin = 227 << 10;
  properties->totalGlobalMem = deviceMemory();
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp properties;
  if (cudaError_t error = cudaGetDeviceProperties(&properties, device)) return error;
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = properties.major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = properties.minor;
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = properties.multiProcessorCount;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(properties.sharedMemPerBlockOptin);
      return cudaSuccess;
    case cudaDevAttrHostNumaId:
      *value = integerFromEnvironment("SHEAF_EMULATED_NODE", -1);
      return cudaSuccess;
    default:
      return cudaErrorInvalidValue;
  }
}

}  // extern "C"
