// oneDNN's primitives: made once, run on the calling thread in memory that they are given.
#pragma once

#include <dnnl.h>

#include <array>
#include <cstddef>
#include <string>
#include <utility>

namespace sheaf::cpu {

// See plan::CpuIdentity.
std::string oneDnnVersion();
std::string effectiveInstructions();
std::string bf16Instructions();

// Null if oneDNN could not make it.
dnnl_engine_t oneDnnEngine();

// The calling thread's: a stream of a CPU has no state worth sharing. Null if oneDNN could not make it.
dnnl_stream_t oneDnnStream();

class Primitive {
 public:
  static constexpr int kMost = 4;
  struct Argument {
    int which;  // DNNL_ARG_...
    dnnl_memory_desc_t description;
  };

  Primitive() = default;
  Primitive(const Primitive&) = delete;
  Primitive& operator=(const Primitive&) = delete;
  ~Primitive() {
    if (primitive_) dnnl_primitive_destroy(primitive_);
  }

  // At most kMost arguments.
  dnnl_status_t make(const_dnnl_primitive_desc_t description, std::initializer_list<Argument> arguments);
  explicit operator bool() const { return primitive_; }

  // With the addresses of all arguments, in the order of make().
  dnnl_status_t run(std::initializer_list<const void*> addresses) const;

 private:
  dnnl_primitive_t primitive_ = nullptr;
  std::array<Argument, kMost> arguments_{};
  int count_ = 0;
};

// Attributes of a primitive that takes its scratch from its caller.
class CallersScratch {
 public:
  CallersScratch();
  CallersScratch(const CallersScratch&) = delete;
  CallersScratch& operator=(const CallersScratch&) = delete;
  ~CallersScratch();
  // Null if oneDNN could not make them.
  const_dnnl_primitive_attr_t get() const { return attributes_; }

 private:
  dnnl_primitive_attr_t attributes_ = nullptr;
};

// Calls take(candidate, name) for oneDNN's implementations of an operation, the best first, until it returns true.
// Returns whether it did.
template <typename Take>
bool chooseImplementation(const_dnnl_op_desc_t operation, const_dnnl_primitive_attr_t attributes,
                          const_dnnl_primitive_desc_t forward, Take take) {
  dnnl_primitive_desc_iterator_t iterator = nullptr;
  if (dnnl_primitive_desc_iterator_create(&iterator, operation, attributes, oneDnnEngine(), forward) != dnnl_success)
    return false;
  bool taken = false;
  do {
    dnnl_primitive_desc_t candidate = dnnl_primitive_desc_iterator_fetch(iterator);
    const char* name = nullptr;
    if (candidate && dnnl_primitive_desc_query(candidate, dnnl_query_impl_info_str, 0, &name) == dnnl_success)
      taken = take(candidate, name);
    if (candidate) dnnl_primitive_desc_destroy(candidate);
  } while (!taken && dnnl_primitive_desc_iterator_next(iterator) == dnnl_success);
  dnnl_primitive_desc_iterator_destroy(iterator);
  return taken;
}

}  // namespace sheaf::cpu
