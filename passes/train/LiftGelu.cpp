#include <array>
#include <cmath>

#include "ir/Train/Matchers.h"
#include "ir/Train/TensorBuilder.h"
#include "passes/train/Passes.h"

namespace sheaf::train {
#define GEN_PASS_DEF_LIFTGELU
#include "passes/train/Passes.h.inc"
}  // namespace sheaf::train

using namespace mlir;
using namespace sheaf::train;

namespace {

// Deeper than any way of writing GELU; keeps the search around one erf or tanh small.
constexpr int maxDepth = 8;

// Coefficients of 1, x, x^2, x^3.
using Polynomial = std::array<double, 4>;

std::optional<Polynomial> multiply(const Polynomial& a, const Polynomial& b) {
  Polynomial product{};
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) {
      if (a[i] * b[j] == 0) continue;
      if (i + j > 3) return std::nullopt;
      product[i + j] += a[i] * b[j];
    }
  return product;
}

// `value` as a polynomial in `x` of degree at most 3, however it is associated.
std::optional<Polynomial> polynomialIn(Value x, Value value, int depth = 0) {
  value = skipReshapes(value);
  if (value == x) return Polynomial{0, 1, 0, 0};
  if (auto constant = splatValue(value)) return Polynomial{*constant, 0, 0, 0};
  Operation* op = value.getDefiningOp();
  if (!op || depth == maxDepth) return std::nullopt;
  if (auto scaled = matchMulBySplat(value)) {
    auto p = polynomialIn(x, scaled->other, depth + 1);
    return p ? multiply({scaled->splat, 0, 0, 0}, *p) : std::nullopt;
  }
  if (auto pow = dyn_cast<PowOp>(op)) {
    auto exponent = splatValue(pow.getRhs());
    auto p = polynomialIn(x, pow.getLhs(), depth + 1);
    if (!p || (exponent != 2.0 && exponent != 3.0)) return std::nullopt;
    auto square = multiply(*p, *p);
    return square && exponent == 3.0 ? multiply(*square, *p) : square;
  }
  if (!isa<AddOp, SubOp, MulOp>(op)) return std::nullopt;
  auto a = polynomialIn(x, op->getOperand(0), depth + 1);
  auto b = a ? polynomialIn(x, op->getOperand(1), depth + 1) : std::nullopt;
  if (!b) return std::nullopt;
  if (isa<MulOp>(op)) return multiply(*a, *b);
  for (int i = 0; i < 4; ++i) (*a)[i] += isa<AddOp>(op) ? (*b)[i] : -(*b)[i];
  return a;
}

// The values from which `value` is computed by the ops of a polynomial.
void collectInputs(Value value, SmallVectorImpl<Value>& inputs, int depth = 0) {
  value = skipReshapes(value);
  if (splatValue(value) || llvm::is_contained(inputs, value)) return;
  inputs.push_back(value);
  Operation* op = value.getDefiningOp();
  if (depth < maxDepth && op && isa<AddOp, SubOp, MulOp, DivOp, PowOp, NegOp>(op))
    for (Value operand : op->getOperands()) collectInputs(operand, inputs, depth + 1);
}

// The x of erf(x / sqrt 2) or tanh(sqrt(2 / pi) * (x + 0.044715 x^3)), or null.
Value matchArgument(Operation* op) {
  Type element = typeOf(op->getResult(0)).getElementType();
  bool erf = isa<ErfOp>(op);
  double linear = erf ? std::sqrt(0.5) : std::sqrt(2 / M_PI), cubic = erf ? 0 : 0.044715 * linear;
  SmallVector<Value> candidates;
  collectInputs(op->getOperand(0), candidates);
  for (Value x : candidates) {
    auto p = polynomialIn(x, op->getOperand(0));
    if (p && (*p)[0] == 0 && isApproximately((*p)[1], linear, element) && (*p)[2] == 0 &&
        (erf ? (*p)[3] == 0 : isApproximately((*p)[3], cubic, element)))
      return x;
  }
  return {};
}

// A product of constants, x and factors proportional to 1 + e.
struct Product {
  Value x, e;
  double constant = 1;
  int xs = 0, gates = 0;

  bool add(Value value, int depth = 0) {
    value = skipReshapes(value);
    if (value == x) return ++xs == 1;
    if (auto splat = splatValue(value)) {
      constant *= *splat;
      return true;
    }
    if (auto p = polynomialIn(e, value); p && (*p)[0] != 0 && (*p)[2] == 0 && (*p)[3] == 0 &&
                                         isApproximately((*p)[1], (*p)[0], typeOf(value).getElementType())) {
      constant *= (*p)[0];
      return ++gates == 1;
    }
    if (depth == maxDepth) return false;
    if (auto scaled = matchMulBySplat(value)) {
      constant *= scaled->splat;
      return add(scaled->other, depth + 1);
    }
    auto mul = value.getDefiningOp<MulOp>();
    return mul && add(mul.getLhs(), depth + 1) && add(mul.getRhs(), depth + 1);
  }
};

// The op whose result is x * (1 + e) / 2, among the users of users of e.
Operation* matchResult(Value x, Value e) {
  SmallVector<std::pair<Value, int>> queue{{e, 0}};
  for (size_t next = 0; next < queue.size(); ++next) {
    auto [value, depth] = queue[next];
    for (Operation* user : value.getUsers()) {
      if (!isa<AddOp, SubOp, MulOp, DivOp, NegOp, ReshapeOp>(user)) continue;
      Product product{x, e};
      if (isa<MulOp, DivOp>(user) && product.add(user->getResult(0)) && product.xs == 1 && product.gates == 1 &&
          isApproximately(product.constant, 0.5, typeOf(x).getElementType()))
        return user;
      if (depth < maxDepth / 2) queue.push_back({user->getResult(0), depth + 1});
    }
  }
  return nullptr;
}

struct LiftGelu : sheaf::train::impl::LiftGeluBase<LiftGelu> {
  using Base::Base;

  void runOnOperation() override {
    int64_t erfs = 0, tanhs = 0;
    visitBackwards(getOperation(), [&](Operation* op) {
      if (!isa<ErfOp, TanhOp>(op)) return;
      Value x = matchArgument(op);
      Operation* root = x ? matchResult(x, op->getResult(0)) : nullptr;
      if (!root) return;
      OpBuilder builder(root);
      TensorBuilder b{builder, root->getLoc()};
      x = b.reshape(x, typeOf(root->getResult(0)).getShape());
      root->getResult(0).replaceAllUsesWith(b.make<GeluOp>(x.getType(), x, isa<TanhOp>(op)));
      ++(isa<ErfOp>(op) ? erfs : tanhs);
    });
    // The ops between the erf or tanh and the root come after what the visit had reached.
    visitBackwards(getOperation(), [](Operation*) {});
    recordLifted(getOperation(), erfs, "GELU in its erf form", "GELUs in their erf form");
    recordLifted(getOperation(), tanhs, "GELU in its tanh form", "GELUs in their tanh form");
  }
};

}  // namespace
