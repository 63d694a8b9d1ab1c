// Devices of the emulated CUDA runtime: each thread has a current one, and each device a context once it is needed.
//
// Rules (CUDA Runtime API 13.0, 6.34 "Interactions with the CUDA Driver API", "Primary Contexts", and cudaSetDevice; a
// function whose documentation says that it "may initialize the runtime state" needs a context):
// - a thread that has chosen no device has device 0, and its first call that needs a context makes that of device 0;
// - cudaSetDevice makes the context of the device that it chooses.
// A context takes hundreds of MiB of its GPU, and is refused where another process has the GPU for itself. A rank has
// one GPU: a thread that makes a context elsewhere, or passes objects of the rank's GPU there, ends the program.
#pragma once

#include <string>

namespace sheaf::emulation {

// Returns the calling thread's device.
int currentDevice();

// Returns the device's number among all of the machine.
int machineDevice(int device);

// Makes the context of the calling thread's device, which `function` needs. Ends the program if the thread has chosen
// none of several devices.
void useContext(const char* function);
// Does the same for a call that is given a stream, an event or a handle of `device`, which must be the thread's.
void useContext(const char* function, int device);

// 90 for sm_90.
int deviceArchitecture();

// Returns the newest CUDA version that the driver knows, 13000 for 13.0.
int driverVersion();

// Ends the program, which has broken a rule: a real run would take memory of another rank's GPU, or fail.
[[noreturn]] void brokeRule(const std::string& rule);

int integerFromEnvironment(const char* name, int otherwise);

}  // namespace sheaf::emulation
