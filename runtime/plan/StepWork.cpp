#include "runtime/plan/StepWork.h"

#include <algorithm>
#include <tuple>
#include <type_traits>
#include <variant>

#include "runtime/base/Text.h"
#include "runtime/plan/Saturating.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Words.h"

namespace sheaf::plan {
namespace {

constexpr const char* kTf32 = "tf32";

// 1 + 2 + ... + n.
int64_t sumTo(int64_t n) {
  return n % 2 ? saturatingMultiply(n, (n + 1) / 2) : saturatingMultiply(n / 2, n + 1);
}

// Scores of one head of one sequence. Under a causal mask query i sees the keys j <= i + keys - queries, of these the
// last `window`.
int64_t scoresOf(const AttentionShape& shape) {
  if (!shape.causal) return product({shape.s, shape.t});
  const int64_t window = shape.window > 0 ? std::min(shape.window, shape.t) : shape.t;
  // Of queries that see at most 1, 2, ..., `keys` keys.
  auto upTo = [&](int64_t keys) {
    return keys <= window ? sumTo(keys) : saturatingAdd(sumTo(window), saturatingMultiply(keys - window, window));
  };
  return upTo(shape.t) - upTo(std::max<int64_t>(shape.t - shape.s, 0));
}

// Over `width` elements of each score.
int64_t attentionProducts(const AttentionShape& shape, int64_t width) {
  return product({2, shape.b, shape.h, scoresOf(shape), width});
}

auto orderOf(const ProductFlops& products) {
  return std::tuple(products.type(), products.tf32());
}

uint64_t add(uint64_t a, int64_t b) {
  return static_cast<uint64_t>(saturatingAdd(static_cast<int64_t>(std::min<uint64_t>(a, INT64_MAX)), b));
}

}  // namespace

int64_t attentionFlops(const AttentionShape& shape) {
  return attentionProducts(shape, shape.d + shape.e);
}

int64_t attentionGradFlops(const AttentionShape& shape) {
  return attentionProducts(shape, 3 * shape.d + 2 * shape.e);
}

std::optional<ProductFlops> productFlops(const AnyCall& any) {
  ProductFlops products;
  auto set = [&](ElementType type, bool tf32, int64_t flops) {
    products.set_type(type);
    products.set_tf32(tf32);
    products.set_flops(static_cast<uint64_t>(flops));
    return true;
  };
  const bool some = std::visit(
      [&]<typename Call>(const Call& call) {
        if constexpr (std::is_same_v<Call, GemmCall>)
          return set(call.type, call.tf32, product({2, call.m, call.n, call.k, call.batch}));
        else if constexpr (std::is_same_v<Call, AttentionCall>)
          return set(call.type, false, attentionFlops(call));
        else if constexpr (std::is_same_v<Call, AttentionGradCall>)
          return set(call.type, false, attentionGradFlops(call));
        else if constexpr (std::is_base_of_v<ConvolutionShape, Call>)
          return set(F32, call.tf32, product({2, call.n, call.o, call.oh, call.ow, call.patch()}));
        else
          return false;
      },
      any);
  return some ? std::optional(products) : std::nullopt;
}

std::string productWord(const ProductFlops& products) {
  return products.tf32() ? kTf32 : word(products.type());
}

std::optional<ProductFlops> productsOfWord(std::string_view word) {
  ProductFlops products;
  products.set_tf32(word == kTf32);
  const std::optional<ElementType> type = products.tf32() ? F32 : valueOf<ElementType>(word);
  if (!type) return std::nullopt;
  products.set_type(*type);
  return products;
}

void addProducts(StepWork& work, const ProductFlops& products) {
  int at = 0;
  while (at < work.products_size() && orderOf(work.products(at)) < orderOf(products)) ++at;
  if (at < work.products_size() && orderOf(work.products(at)) == orderOf(products)) {
    ProductFlops& sum = *work.mutable_products(at);
    sum.set_flops(add(sum.flops(), static_cast<int64_t>(std::min<uint64_t>(products.flops(), INT64_MAX))));
    return;
  }
  *work.add_products() = products;
  for (int i = work.products_size() - 1; i > at; --i) work.mutable_products()->SwapElements(i, i - 1);
}

uint64_t flopsOf(const StepWork& work, ElementType type, bool tf32) {
  for (const ProductFlops& products : work.products())
    if (products.type() == type && products.tf32() == tf32) return products.flops();
  return 0;
}

uint64_t collectiveBytes(const Plan& plan, const Collective& collective) {
  const uint64_t parts = collective.op() == ALL_REDUCE ? 1 : static_cast<uint64_t>(ranksOf(plan, collective));
  return collective.count() * elementBytes(collective.type()) * parts;
}

uint64_t networkBytes(const Plan& plan, const Collective& collective) {
  if (plan.ranks_per_node() == 0) return 0;
  const Axis axis = axisOf(plan, collective);
  const uint64_t ranks = static_cast<uint64_t>(plan.ranks()), others = static_cast<uint64_t>(nodesOf(plan) - 1);
  // A group has as many ranks of each node, whose values are sent one rank after the other where they are summed.
  const uint64_t each = axis == NETWORK ? 1 : static_cast<uint64_t>(ranksPerNode(plan));
  const uint64_t groups = ranks / (each * (others + 1));
  const uint64_t bytes = collective.count() * elementBytes(collective.type());
  if (axis == NODE) return 0;
  if (collective.op() == ALL_GATHER) return ranks * others * bytes;
  if (collective.op() == REDUCE_SCATTER) return ranks * others * each * bytes;
  // The parts to who sums them, and the sums to everyone; of few bytes everything to one rank of each node.
  return bytes <= kSmallAllReduceBytes ? groups * (others + 1) * others * each * bytes
                                       : groups * (others * each * bytes + others * bytes);
}

StepWork issuedWork(const Plan& plan) {
  StepWork work;
  // With nodes: what a rank sends in the hops of sums and gathers. In all hops of an array it is (ranks - 1) / ranks of
  // it.
  uint64_t reduced = 0, gathered = 0;
  for (const Instruction* each : stepInstructions(plan)) {
    const Instruction& instruction = *each;
    if (instruction.has_call()) {
      const Expected<AnyCall> call = parseCall(instruction.call());
      if (!call.ok()) continue;
      if (const std::optional<ProductFlops> products = productFlops(*call)) addProducts(work, *products);
    } else if (instruction.updates_bucket() > 0) {
      forEachOperand(instruction, [&](const Operand& operand) {
        const uint64_t times = operand.access() == READ_WRITE ? 2 : 1;
        work.set_state_bytes(work.state_bytes() + times * operand.bytes());
      });
    } else if (instruction.has_collective() && !instruction.collective().bucket().empty()) {
      const Collective& collective = instruction.collective();
      const uint64_t bytes = collectiveBytes(plan, collective);
      if (plan.ranks_per_node() > 0) {
        const uint64_t members = static_cast<uint64_t>(ranksOf(plan, collective));
        if (collective.op() != ALL_GATHER) reduced += bytes / members * (members - 1);
        if (collective.op() != REDUCE_SCATTER) gathered += bytes / members * (members - 1);
        continue;
      }
      // An all-reduce gives every rank the sums.
      if (collective.op() != ALL_GATHER) work.set_reduced_bytes(work.reduced_bytes() + bytes);
      if (collective.op() != REDUCE_SCATTER) work.set_gathered_bytes(work.gathered_bytes() + bytes);
    }
  }
  if (plan.ranks_per_node() > 0 && plan.ranks() > 1) {
    const uint64_t ranks = static_cast<uint64_t>(plan.ranks());
    auto whole = [&](uint64_t sent) { return sent / (ranks - 1) * ranks + sent % (ranks - 1) * ranks / (ranks - 1); };
    work.set_reduced_bytes(whole(reduced));
    work.set_gathered_bytes(whole(gathered));
  }
  return work;
}

Status checkFloor(const Plan& plan) {
  if (!plan.has_floor()) return {};
  const StepWork& floor = plan.floor();
  const StepWork issued = issuedWork(plan);
  auto compare = [](uint64_t stated, const std::string& of, uint64_t done) {
    if (stated <= done) return Status();
    return Status::error(
        cat("it states ", stated, " ", of, ", more than the ", done, " of the plan's own instructions"));
  };
  for (int i = 0; i < floor.products_size(); ++i) {
    const ProductFlops& products = floor.products(i);
    if (!isKnown(products.type()) || (products.tf32() && products.type() != F32))
      return Status::error(cat("entry ", i, " of its products has a type in which there are no matrix products"));
    if (i > 0 && !(orderOf(floor.products(i - 1)) < orderOf(products)))
      return Status::error(cat("its products of ", productWord(products), " are given twice or out of order"));
    SHEAF_RETURN_IF_ERROR(compare(products.flops(), cat("flops of ", productWord(products), " products"),
                                  flopsOf(issued, products.type(), products.tf32())));
  }
  SHEAF_RETURN_IF_ERROR(compare(floor.state_bytes(), "bytes that updates read and write", issued.state_bytes()));
  SHEAF_RETURN_IF_ERROR(compare(floor.reduced_bytes(), "bytes reduced over ranks", issued.reduced_bytes()));
  return compare(floor.gathered_bytes(), "bytes gathered from ranks", issued.gathered_bytes());
}

}  // namespace sheaf::plan
