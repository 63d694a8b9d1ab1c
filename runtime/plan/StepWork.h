// What one rank does in a step, in terms that do not depend on instructions (the message StepWork): flops of matrix
// products, bytes of state, bytes exchanged. The compiler states the least of a model at a stage (`Plan.floor`) before
// recomputation; the same quantities of a plan's instructions are computed here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/Status.h"
#include "runtime/plan/Library.h"

namespace sheaf::plan {

// Flops of attention's two matrix products, over the scores that a causal mask and its window leave. Sizes must not be
// negative; what does not fit is INT64_MAX.
int64_t attentionFlops(const AttentionShape& shape);
// Of the five products of its gradient: the scores again, the gradient of the scores, those of query, key and value.
int64_t attentionGradFlops(const AttentionShape& shape);

// Flops of the matrix products that a call computes; a convolution counts as the product that it unrolls to. None for
// calls without products.
std::optional<ProductFlops> productFlops(const AnyCall& call);

// "bf16", "f32", "tf32": the type of products as a word, and back.
std::string productWord(const ProductFlops& products);
std::optional<ProductFlops> productsOfWord(std::string_view word);

// Adds products to those of the same type.
void addProducts(StepWork& work, const ProductFlops& products);
// The products of that type; 0 flops if there are none.
uint64_t flopsOf(const StepWork& work, ElementType type, bool tf32);

// Bytes of the whole array that a collective works on, all ranks' parts together.
uint64_t collectiveBytes(const Plan& plan, const Collective& collective);

// Up to this size an all-reduce between processes sends everything to all: one message's latency instead of two.
inline constexpr uint64_t kSmallAllReduceBytes = 4096;
// Bytes that all ranks together send to other nodes in a collective, where the ranks of each node, and they alone,
// share memory (runtime/comm/transport). 0 in a plan without nodes.
uint64_t networkBytes(const Plan& plan, const Collective& collective);

// What the instructions of the plan's body do: all matrix products, the bytes of the launches that update buckets, and
// the collectives on buckets. The plan must have passed verifyInstructions.
StepWork issuedWork(const Plan& plan);

// Whether the plan's floor, if it states one, is well-formed and no more than what its instructions do.
Status checkFloor(const Plan& plan);

}  // namespace sheaf::plan
