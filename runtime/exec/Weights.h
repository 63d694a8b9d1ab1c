// Whole weights: from the plan's own files or a safetensors file into the ranks' storage, and back.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/exec/CopiedWeights.h"
#include "runtime/exec/StateAccess.h"
#include "runtime/exec/WeightFiles.h"
#include "runtime/io/Safetensors.h"

namespace sheaf::exec {

// A parameter's shape in files that carry its name: where dimensions were permuted, their original order.
std::vector<int64_t> namedShape(const plan::Parameter& parameter);

// Copies elements [begin, end) of the parameter's values, in the order of the plan, from values in the named order.
void namedToPlan(const plan::Parameter& parameter, const std::byte* named, size_t elementBytes, uint64_t begin,
                 uint64_t end, std::byte* out);
// All values in the named order from all values in the plan's.
void planToNamed(const plan::Parameter& parameter, const std::byte* values, size_t elementBytes, std::byte* out);

// The tensor of a parameter in a file of weights: by its name, or, of a tied one, by another name. Null if there is
// none. An error if there are two that differ.
Expected<const io::Tensor*> tensorOf(const plan::Parameter& parameter, const io::Safetensors& file);

// An error unless a tensor of --weights has the parameter's shape and a type that can become its type.
Status checkReplacement(const plan::Parameter& parameter, const io::Tensor& tensor);

// Weights that replace those that the plan names.
struct Replacement {
  const io::Safetensors& file;
  bool partial = false;  // parameters that it lacks keep the plan's initial values
};

// Constants, then every parameter: from `replacement` (by name, in the named layout, converted) if it has the tensor,
// else from the plan's source. Padding and states become zero.
Status loadWeights(const StateAccess& state, WeightFiles& files, const std::optional<Replacement>& replacement,
                   const std::function<void(const std::string&)>& note);
Status loadConstants(const StateAccess& state, WeightFiles& files);

// The tensors of saveWeights(): one for each parameter, in order, then those that are copied.
std::vector<io::SafetensorsWriter::Entry> weightEntries(const StateAccess& state, const CopiedWeights& copied);

// All parameters in the named layout: their exact values, in f32 where there are master weights; and `copied`. Every
// process calls it; process 0 writes.
Status saveWeights(const StateAccess& state, const CopiedWeights& copied, const std::string& path);

// Zeros into padding and, if `states`, optimizer state: what no file gives a value to.
Status clearPadding(const StateAccess& state, bool states);

}  // namespace sheaf::exec
