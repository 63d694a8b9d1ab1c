// Library calls for tests.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>

#include "runtime/plan/plan.pb.h"

namespace sheaf::testing {

using Integers = std::initializer_list<std::pair<const char*, int64_t>>;
using Reals = std::initializer_list<std::pair<const char*, double>>;

inline plan::LibraryCall libraryCall(const std::string& function, Integers integers, Reals reals = {}) {
  plan::LibraryCall call;
  call.set_function(function);
  for (const auto& [name, value] : integers) {
    plan::Attribute* attribute = call.add_attributes();
    attribute->set_name(name);
    attribute->set_integer(value);
  }
  for (const auto& [name, value] : reals) {
    plan::Attribute* attribute = call.add_attributes();
    attribute->set_name(name);
    attribute->set_real(value);
  }
  return call;
}

}  // namespace sheaf::testing
