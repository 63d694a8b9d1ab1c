// The function of libsheaf_measure.so.
#include "runtime/measure/Measurement.h"

extern "C" __attribute__((visibility("default"))) sheaf::Expected<std::string> sheaf_measure_profile(
    sheaf::Device& device, const sheaf::measure::MeasureOptions& options) {
  return sheaf::measure::measureProfile(device, options);
}
