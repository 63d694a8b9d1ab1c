// Whole weights as safetensors files with an index, written by all ranks: none holds, or sends, more than a piece.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "runtime/base/Status.h"
#include "runtime/exec/CopiedWeights.h"
#include "runtime/exec/StateAccess.h"

namespace sheaf::exec {

// What saveWeights() would write, as SafetensorsShards.h lays it out at the path `index`. Every process calls it and
// writes what its ranks own, so that all must see the folder.
Status saveWeightShards(const StateAccess& state, const CopiedWeights& copied, const std::string& index,
                        uint64_t shardBytes);

// Values of a parameter in the plan's order, from element `begin` on, as runs of elements that lie side by side in the
// named order: calls visit(place, elements), `place` the number of the run's first element, until a call fails.
Status forEachNamedRun(const plan::Parameter& parameter, uint64_t begin, std::span<const std::byte> values,
                       uint64_t elementBytes,
                       const std::function<Status(uint64_t place, std::span<const std::byte> elements)>& visit);

}  // namespace sheaf::exec
