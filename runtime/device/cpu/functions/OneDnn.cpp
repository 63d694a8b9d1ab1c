#include "runtime/device/cpu/functions/OneDnn.h"

#include <algorithm>

#include "runtime/base/Text.h"

namespace sheaf::cpu {
namespace {

struct Stream {
  Stream() {
    if (dnnl_stream_create(&handle, oneDnnEngine(), dnnl_stream_default_flags) != dnnl_success) handle = nullptr;
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() {
    if (handle) dnnl_stream_destroy(handle);
  }
  dnnl_stream_t handle = nullptr;
};

bool uses(unsigned set) {
  return (static_cast<unsigned>(dnnl_get_effective_cpu_isa()) & set) == set;
}

}  // namespace

std::string oneDnnVersion() {
  const dnnl_version_t* version = dnnl_version();
  return cat("oneDNN ", version->major, ".", version->minor, ".", version->patch);
}

std::string effectiveInstructions() {
  return uses(dnnl_cpu_isa_avx512_core) ? "AVX-512"
         : uses(dnnl_cpu_isa_avx2)      ? "AVX2"
         : uses(dnnl_cpu_isa_avx)       ? "AVX"
                                        : "SSE4.1";
}

std::string bf16Instructions() {
  return uses(dnnl_cpu_isa_avx512_core_amx) ? "AMX" : uses(dnnl_cpu_isa_avx512_core_bf16) ? "bf16" : "none";
}

dnnl_engine_t oneDnnEngine() {
  static dnnl_engine_t made = [] {
    dnnl_engine_t fresh = nullptr;
    return dnnl_engine_create(&fresh, dnnl_cpu, 0) == dnnl_success ? fresh : nullptr;
  }();
  return made;
}

dnnl_stream_t oneDnnStream() {
  thread_local const Stream stream;
  return stream.handle;
}

dnnl_status_t Primitive::make(const_dnnl_primitive_desc_t description, std::initializer_list<Argument> arguments) {
  std::copy(arguments.begin(), arguments.end(), arguments_.begin());
  count_ = static_cast<int>(arguments.size());
  return dnnl_primitive_create(&primitive_, description);
}

dnnl_status_t Primitive::run(std::initializer_list<const void*> addresses) const {
  const dnnl_stream_t stream = oneDnnStream();
  if (!stream) return dnnl_out_of_memory;
  dnnl_exec_arg_t arguments[kMost] = {};
  dnnl_status_t status = dnnl_success;
  for (int i = 0; i < count_ && status == dnnl_success; ++i) {
    arguments[i].arg = arguments_[i].which;
    status = dnnl_memory_create(&arguments[i].memory, &arguments_[i].description, oneDnnEngine(),
                                const_cast<void*>(addresses.begin()[i]));
  }
  if (status == dnnl_success) status = dnnl_primitive_execute(primitive_, stream, count_, arguments);
  for (dnnl_exec_arg_t& argument : arguments)
    if (argument.memory) dnnl_memory_destroy(argument.memory);
  return status;
}

CallersScratch::CallersScratch() {
  if (dnnl_primitive_attr_create(&attributes_) != dnnl_success) attributes_ = nullptr;
  if (attributes_) dnnl_primitive_attr_set_scratchpad_mode(attributes_, dnnl_scratchpad_mode_user);
}

CallersScratch::~CallersScratch() {
  if (attributes_) dnnl_primitive_attr_destroy(attributes_);
}

}  // namespace sheaf::cpu
