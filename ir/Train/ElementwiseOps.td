// Elementwise operations of the `train` dialect, a row each: what the op is called and means, what one element costs,
// how a kernel computes it, the gradient, and ONNX's operator of the same meaning.
//
// From a row come the op class, its type inference, its gradient rule, its cost in every estimate, its place in fused
// kernels, the kernels' code and the importer's entry. The evaluator (EvaluatorElementwise.cpp) is written by hand,
// so that the tests have an independent oracle.
#ifndef SHEAF_ELEMENTWISE_OPS
#define SHEAF_ELEMENTWISE_OPS

include "ir/Train/TrainBase.td"

// ONNX's operator that has the operands and the meaning of an op, and the first opset from which it is imported.
class Onnx<string operator, int opset> {
  string name = operator;
  int since = opset;
}
defvar NoOnnx = Onnx<"", 0>;

// What the elements of an op's operands may be: as a constraint of the op, and as a C++ expression of `element`, which the
// importer asks before it makes the op.
class Elements<Type type, string accepts> {
  Type tensor = type;
  string condition = accepts;
}
def AnyElements : Elements<Train_Tensor, "true">;
def Numbers : Elements<Train_NumberTensor, "!element.isInteger(1)">;
def Floats : Elements<Train_FloatTensor, "::mlir::isa<::mlir::FloatType>(element)">;
def Integers : Elements<Train_IntegerTensor, "::mlir::isa<::mlir::IntegerType>(element)">;

// The result has the operand's shape and holds booleans.
class BooleansLike<string operand>
    : TypesMatchWith<"result holds a boolean for each element", operand, "result", "booleansLike($_self)">;

// An elementwise op that kernels compute in registers. The fields of a row:
//
// - `elements`: what the operands may hold.
// - `cost`: of one element, in additions. From 12 on the op counts as an elementary function (FusionCost.h).
// - `emission`: a C++ expression of the element's value in a kernel: of `a` (an ArithBuilder), the operands' elements
//   under the names in `names`, the element type `element` of the first, and the op's accessors. Its functions are
//   those of codegen/fusion/MathFunctions.h and codegen/fusion/ElementOps.cpp, found through the namespace of `a`.
// - `gradients`: for each operand a C++ expression of its gradient, of `t` (a TensorBuilder), the operands, the result
//   `r` and its gradient `g`; later expressions may read `gradients[0]`. `{}` means that the gradient is zero.
//   A factor that is infinite at a finite operand needs `guardUnless` (ValueRange.h): 0 times infinity is 0.
//   Without the field, the rule of a differentiable op stands in TrainGradients.cpp. Where `r` serves as well as an
//   operand, use `r`: the next op reads it anyway, so the operand need not be kept for the backward pass.
// - `onnx`: the operator that the importer maps to the op.
class Train_ElementOp<string mnemonic, string text, Elements elements, list<string> names, int cost, string emission,
                      list<string> gradients, Onnx onnx, list<Trait> traits>
    : Train_Op<mnemonic, !listconcat([Pure, Elementwise, FusableElementwiseInterface], traits)> {
  let summary = text;
  defvar indices = !range(!size(names));

  let extraClassDeclaration = [{
    static constexpr int kOperationCost = }] # cost # [{;
    }] # !if(!empty(onnx.name), "", [{
    static constexpr ::llvm::StringLiteral kOnnxName = "}] # onnx.name # [{";
    static constexpr int kOnnxSince = }] # onnx.since # [{;
    }]) # [{
    static bool accepts(::mlir::Type element) { return }] # elements.condition # [{; }

    template <typename Builder>
    ::mlir::Value emitElement(Builder& a, ::mlir::ValueRange operands) {
      [[maybe_unused]] ::mlir::Type element = elementTypeOf(getOperation()->getOperand(0));
      }] # !interleave(!foreach(i, indices,
        "[[maybe_unused]] ::mlir::Value " # names[i] # " = operands[" # i # "];"), "\n      ") # [{
      return }] # emission # [{;
    }
  }];
  let extraClassDefinition = !if(!empty(gradients), "", [{
    void $cppClass::buildGradient(::mlir::OpBuilder& builder, ::mlir::ValueRange results,
                                  ::llvm::SmallVectorImpl<::mlir::Value>& gradients) {
      [[maybe_unused]] TensorBuilder t{builder, getLoc()};
      [[maybe_unused]] ::mlir::Value g = results[0], r = getOperation()->getResult(0);
      }] # !interleave(!foreach(i, indices,
        "[[maybe_unused]] ::mlir::Value " # names[i] # " = getOperation()->getOperand(" # i # ");"), "\n      ") # [{
      gradients.assign(}] # !size(names) # [{, ::mlir::Value());
      if (!g) return;
      }] # !interleave(!foreach(i, !range(!size(gradients)), "gradients[" # i # "] = " # gradients[i] # ";"),
        "\n      ") # [{
    }
  }]);
}

defvar Differentiable = DeclareOpInterfaceMethods<DifferentiableInterface>;

//===--------------------------------------------------------------------------------------------------------------===//
// One operand
//===--------------------------------------------------------------------------------------------------------------===//

// An empty gradient: the rule stands in TrainGradients.cpp.
class Train_Unary<Elements elements, string mnemonic, string text, string emission, int cost = 1, string gradient = "",
                  Onnx onnx = NoOnnx>
    : Train_ElementOp<mnemonic, text, elements, ["x"], cost, emission,
                      !if(!empty(gradient), []<string>, [gradient]), onnx, [SameOperandsAndResultType, Differentiable]> {
  let arguments = (ins elements.tensor:$operand);
  let results = (outs elements.tensor:$result);
  let assemblyFormat = "$operand attr-dict `:` type($result)";
}

def Train_NegOp : Train_Unary<Numbers, "neg", "-x", "a.neg(x)", gradient = "t.neg(g)", onnx = Onnx<"Neg", 6>>;
def Train_AbsOp : Train_Unary<Numbers, "abs", "|x|; gradient 0 at 0", "emitAbs(a, x, element)",
    gradient = "t.mul(g, t.make<SignOp>(x))", onnx = Onnx<"Abs", 6>>;
def Train_SignOp : Train_Unary<Numbers, "sign", "-1, 0 or 1; gradient 0", "emitSign(a, x, element)", gradient = "{}",
    onnx = Onnx<"Sign", 9>>;
def Train_ReluOp : Train_Unary<Numbers, "relu", "max(x, 0); gradient 0 at 0", "emitRelu(a, x, element)",
    onnx = Onnx<"Relu", 6>>;

def Train_FloorOp : Train_Unary<Floats, "floor", "rounds down; gradient 0", "a.floor(x)", gradient = "{}",
    onnx = Onnx<"Floor", 6>>;
def Train_CeilOp : Train_Unary<Floats, "ceil", "rounds up; gradient 0", "a.ceil(x)", gradient = "{}",
    onnx = Onnx<"Ceil", 6>>;
def Train_RoundOp : Train_Unary<Floats, "round", "rounds half to even; gradient 0", "a.roundEven(x)", gradient = "{}",
    onnx = Onnx<"Round", 11>>;

def Train_ReciprocalOp : Train_Unary<Floats, "reciprocal", "1/x", "a.div(a.constant(x.getType(), 1.0), x)", cost = 6,
    gradient = "guardUnless(t, isNotZero(x), g, r, t.neg(t.mul(g, t.mul(r, r))))", onnx = Onnx<"Reciprocal", 6>>;
def Train_SqrtOp : Train_Unary<Floats, "sqrt", "square root", "a.sqrt(x)", cost = 6,
    onnx = Onnx<"Sqrt", 6>>;
def Train_RsqrtOp : Train_Unary<Floats, "rsqrt", "1/sqrt(x), correctly: division of 1 by the square root",
    "a.div(a.constant(x.getType(), 1.0), a.sqrt(x))", cost = 6,
    gradient = "guardUnless(t, isPositive(x), g, x, t.mul(t.mul(g, -0.5), t.mul(t.mul(r, r), r)))">;

def Train_ExpOp : Train_Unary<Floats, "exp", "e^x", "emitExp(a, x)", cost = 15,
    gradient = "guardUnless(t, isBoundedAbove(x), g, r, t.mul(g, r))", onnx = Onnx<"Exp", 6>>;
def Train_LogOp : Train_Unary<Floats, "log", "natural logarithm", "emitLog(a, x)", cost = 22,
    gradient = "guardUnless(t, isPositive(x), g, x, t.div(g, x))">;
def Train_SigmoidOp : Train_Unary<Floats, "sigmoid", "1/(1+e^-x)", "emitSigmoid(a, x)", cost = 22,
    gradient = "t.mul(g, t.mul(r, t.sub(t.splatLike(r, 1), r)))", onnx = Onnx<"Sigmoid", 6>>;
def Train_SoftplusOp : Train_Unary<Floats, "softplus", "log(1 + e^x)", "emitSoftplus(a, x)", cost = 52,
    gradient = "t.mul(g, t.make<SigmoidOp>(x))">;
def Train_TanhOp : Train_Unary<Floats, "tanh", "hyperbolic tangent", "emitTanh(a, x)", cost = 32,
    gradient = "t.mul(g, t.sub(t.splatLike(r, 1), t.mul(r, r)))", onnx = Onnx<"Tanh", 6>>;
def Train_ErfOp : Train_Unary<Floats, "erf", "Gauss error function", "emitErf(a, x)", cost = 32,
    gradient = "t.mul(g, t.mul(t.exp(t.neg(t.mul(x, x))), 2 * std::numbers::inv_sqrtpi))", onnx = Onnx<"Erf", 9>>;
def Train_SinOp : Train_Unary<Floats, "sin", "sine", "emitSin(a, x)", cost = 32,
    gradient = "t.mul(g, t.make<CosOp>(x))", onnx = Onnx<"Sin", 7>>;
def Train_CosOp : Train_Unary<Floats, "cos", "cosine", "emitCos(a, x)", cost = 32,
    gradient = "t.neg(t.mul(g, t.make<SinOp>(x)))", onnx = Onnx<"Cos", 7>>;

def Train_Expm1Op : Train_Unary<Floats, "expm1", "e^x - 1, accurate near 0", "emitExpm1(a, x)", cost = 28,
    gradient = "guardUnless(t, isBoundedAbove(x), g, x, t.mul(g, t.exp(x)))">;
def Train_Log1pOp : Train_Unary<Floats, "log1p", "log(1 + x), accurate near 0", "emitLog1p(a, x)", cost = 34,
    gradient = "guardUnless(t, isNotNegative(x), g, x, t.div(g, t.add(x, t.splatLike(x, 1))))">;
def Train_SinhOp : Train_Unary<Floats, "sinh", "hyperbolic sine", "emitSinh(a, x)", cost = 34,
    gradient = "guardUnless(t, false, g, x, t.mul(g, t.make<CoshOp>(x)))", onnx = Onnx<"Sinh", 9>>;
def Train_CoshOp : Train_Unary<Floats, "cosh", "hyperbolic cosine", "emitCosh(a, x)", cost = 23,
    gradient = "guardUnless(t, false, g, x, t.mul(g, t.make<SinhOp>(x)))", onnx = Onnx<"Cosh", 9>>;
def Train_AsinhOp : Train_Unary<Floats, "asinh", "inverse hyperbolic sine", "emitAsinh(a, x)", cost = 60,
    gradient = "t.mul(g, t.make<RsqrtOp>(t.fma(x, x, t.splatLike(x, 1))))", onnx = Onnx<"Asinh", 9>>;
def Train_AcoshOp : Train_Unary<Floats, "acosh", "inverse hyperbolic cosine", "emitAcosh(a, x)", cost = 52,
    gradient = "guardUnless(t, false, g, x, t.mul(g, t.make<RsqrtOp>(t.fma(x, x, t.splatLike(x, -1)))))",
    onnx = Onnx<"Acosh", 9>>;
def Train_AtanhOp : Train_Unary<Floats, "atanh", "inverse hyperbolic tangent", "emitAtanh(a, x)", cost = 48,
    gradient = "guardUnless(t, false, g, x, t.div(g, t.fma(t.neg(x), x, t.splatLike(x, 1))))", onnx = Onnx<"Atanh", 9>>;
def Train_TanOp : Train_Unary<Floats, "tan", "tangent", "emitTan(a, x)", cost = 38,
    gradient = "t.mul(g, t.fma(r, r, t.splatLike(r, 1)))", onnx = Onnx<"Tan", 7>>;
def Train_AsinOp : Train_Unary<Floats, "asin", "inverse sine", "emitAsin(a, x)", cost = 24,
    gradient = "guardUnless(t, false, g, x, t.mul(g, t.make<RsqrtOp>(t.fma(t.neg(x), x, t.splatLike(x, 1)))))",
    onnx = Onnx<"Asin", 7>>;
def Train_AcosOp : Train_Unary<Floats, "acos", "inverse cosine", "emitAcos(a, x)", cost = 26,
    gradient = "guardUnless(t, false, g, x, t.neg(t.mul(g, t.make<RsqrtOp>(t.fma(t.neg(x), x, t.splatLike(x, 1))))))",
    onnx = Onnx<"Acos", 7>>;
def Train_AtanOp : Train_Unary<Floats, "atan", "inverse tangent", "emitAtan(a, x)", cost = 26,
    gradient = "t.div(g, t.fma(x, x, t.splatLike(x, 1)))">;

def Train_NotOp : Train_ElementOp<"not", "inverts every bit; logical negation of booleans", Integers, ["x"], 1,
    "a.bitXor(x, a.integer(x.getType(), -1))", [], NoOnnx, [SameOperandsAndResultType]> {
  let arguments = (ins Train_IntegerTensor:$operand);
  let results = (outs Train_IntegerTensor:$result);
  let assemblyFormat = "$operand attr-dict `:` type($result)";
}
def Train_IsNanOp : Train_ElementOp<"is_nan", "whether an element is not a number", Floats, ["x"], 1, "a.isNan(x)", [],
    Onnx<"IsNaN", 9>, [BooleansLike<"operand">]> {
  let arguments = (ins Train_FloatTensor:$operand);
  let results = (outs Train_BoolTensor:$result);
  let assemblyFormat = "$operand attr-dict `:` type($operand)";
}
def Train_CastOp : Train_ElementOp<"cast",
    "converts the element type; float to integer truncates and saturates (NaN: 0), anything to i1 is `!= 0`", AnyElements, ["x"], 1,
    "emitCast(a, x, element, elementTypeOf(getResult()))", [], NoOnnx, [SameOperandsAndResultShape, Differentiable]> {
  let arguments = (ins Train_Tensor:$operand);
  let results = (outs Train_Tensor:$result);
  let assemblyFormat = "$operand attr-dict `:` type($operand) `->` type($result)";
  let hasFolder = 1;
}

//===--------------------------------------------------------------------------------------------------------------===//
// Two operands and three
//===--------------------------------------------------------------------------------------------------------------===//

class Train_Binary<string mnemonic, string text, string emission, int cost = 1, list<string> gradients = [],
                   Onnx onnx = NoOnnx>
    : Train_ElementOp<mnemonic, text, Numbers, ["x", "y"], cost, emission, gradients, onnx,
                      [SameOperandsAndResultType, Differentiable]> {
  let arguments = (ins Train_NumberTensor:$lhs, Train_NumberTensor:$rhs);
  let results = (outs Train_NumberTensor:$result);
  let assemblyFormat = "$lhs `,` $rhs attr-dict `:` type($result)";
}
def Train_AddOp : Train_Binary<"add", "x + y", "a.add(x, y)", gradients = ["g", "g"], onnx = Onnx<"Add", 7>>;
def Train_SubOp : Train_Binary<"sub", "x - y", "a.sub(x, y)", gradients = ["g", "t.neg(g)"]>;
def Train_MulOp : Train_Binary<"mul", "x * y", "a.mul(x, y)",
    gradients = ["guardUnless(t, !mayBeInfinite(y), g, y, t.mul(g, y))",
                 "guardUnless(t, !mayBeInfinite(x), g, x, t.mul(g, x))"], onnx = Onnx<"Mul", 7>>;
def Train_DivOp : Train_Binary<"div", "x / y; integers truncate, and give 0 for y = 0", "emitDiv(a, x, y, element)", cost = 6,
    gradients = ["guardUnless(t, isNotZero(y), g, y, t.div(g, y))",
                 "guardUnless(t, isNotZero(y), gradients[0], x, t.neg(t.mul(gradients[0], r)))"], onnx = Onnx<"Div", 7>>;
def Train_PowOp : Train_Binary<"pow", "x ^ y; both have gradients", "emitAnyPow(a, x, y, element)", cost = 120>;
// `bound`: y limits x as in PyTorch's clamp, so at a tie x has no gradient.
class Train_Extremum<string mnemonic, string text, string emission> : Train_Binary<mnemonic, text, emission> {
  let arguments = (ins Train_NumberTensor:$lhs, Train_NumberTensor:$rhs, UnitAttr:$bound);
}
def Train_MinOp : Train_Extremum<"min", "the smaller; ties share the gradient (`bound`: y has it all)",
    "emitMin(a, x, y, element)">;
def Train_MaxOp : Train_Extremum<"max", "the larger; ties share the gradient (`bound`: y has it all)",
    "emitMax(a, x, y, element)">;
def Train_AtanRatioOp : Train_ElementOp<"atan_ratio",
    "atan(x / y), with the gradient of the angle of the point (y, x), which is 0 at (0, 0)", Floats, ["x", "y"], 32,
    "emitAtan(a, a.div(x, y))", [], NoOnnx, [SameOperandsAndResultType, Differentiable]> {
  let arguments = (ins Train_FloatTensor:$lhs, Train_FloatTensor:$rhs);
  let results = (outs Train_FloatTensor:$result);
  let assemblyFormat = "$lhs `,` $rhs attr-dict `:` type($result)";
}
def Train_ModOp : Train_Binary<"mod", "remainder with the sign of the divisor (`fmod`: of the dividend); no gradient to y",
    "emitMod(a, x, y, element, getFmod())", cost = 6, gradients = ["g", "{}"]> {
  let arguments = (ins Train_NumberTensor:$lhs, Train_NumberTensor:$rhs, UnitAttr:$fmod);
}

class Train_Bitwise<string mnemonic, string text, string emission, int cost = 1>
    : Train_ElementOp<mnemonic, text, Integers, ["x", "y"], cost, emission, [], NoOnnx, [SameOperandsAndResultType]> {
  let arguments = (ins Train_IntegerTensor:$lhs, Train_IntegerTensor:$rhs);
  let results = (outs Train_IntegerTensor:$result);
  let assemblyFormat = "$lhs `,` $rhs attr-dict `:` type($result)";
}
def Train_AndOp : Train_Bitwise<"and", "bitwise and; logical and of booleans", "a.bitAnd(x, y)">;
def Train_OrOp : Train_Bitwise<"or", "bitwise or; logical or of booleans", "a.bitOr(x, y)">;
def Train_XorOp : Train_Bitwise<"xor", "bitwise exclusive or; logical exclusive or of booleans", "a.bitXor(x, y)">;
def Train_ShiftLeftOp : Train_Bitwise<"shift_left",
    "x times 2^y, wrapping around; 0 where y is negative or not less than the number of bits", "emitShiftLeft(a, x, y)",
    cost = 3>;
def Train_ShiftRightOp : Train_Bitwise<"shift_right",
    "x divided by 2^y, rounded down; 0, or -1 of a negative x, where y is negative or not less than the number of bits",
    "emitShiftRight(a, x, y, element)", cost = 3>;

def Train_CompareOp : Train_ElementOp<"compare",
    "elementwise comparison; comparisons with NaN are false but for `ne`", AnyElements, ["x", "y"], 1,
    "emitCompare(a, getPredicate(), x, y, element)", [], NoOnnx, [SameTypeOperands, BooleansLike<"lhs">]> {
  let arguments = (ins Train_ComparePredicateAttr:$predicate, Train_Tensor:$lhs, Train_Tensor:$rhs);
  let results = (outs Train_BoolTensor:$result);
  let assemblyFormat = "$predicate $lhs `,` $rhs attr-dict `:` type($lhs)";
}
def Train_SelectOp : Train_ElementOp<"select", "`on_true` where the condition holds, else `on_false`",
    AnyElements, ["c", "x", "y"], 1, "a.select(c, x, y)", [], NoOnnx,
    [AllTypesMatch<["on_true", "on_false", "result"]>, Differentiable]> {
  let arguments = (ins Train_BoolTensor:$condition, Train_Tensor:$on_true, Train_Tensor:$on_false);
  let results = (outs Train_Tensor:$result);
  let assemblyFormat = "$condition `,` $on_true `,` $on_false attr-dict `:` type($condition) `,` type($result)";
}
def Train_FmaOp : Train_ElementOp<"fma", "x * y + z, rounded once; the only way a fused multiply-add comes about",
    Floats, ["x", "y", "z"], 1, "a.fma(x, y, z)", ["t.mul(g, y)", "t.mul(g, x)", "g"], NoOnnx,
    [SameOperandsAndResultType, Differentiable]> {
  let arguments = (ins Train_FloatTensor:$a, Train_FloatTensor:$b, Train_FloatTensor:$c);
  let results = (outs Train_FloatTensor:$result);
  let assemblyFormat = "$a `,` $b `,` $c attr-dict `:` type($result)";
}
// Only in backward passes: what a gradient rule makes of a factor that may not be finite.
def Train_GuardOp : Train_ElementOp<"guard", "y, but 0 where the gradient g is 0 and x is a number", Floats, ["g", "x", "y"],
    2, "emitGuard(a, g, x, y)", [], NoOnnx, [SameOperandsAndResultType]> {
  let arguments = (ins Train_FloatTensor:$gradient, Train_FloatTensor:$operand, Train_FloatTensor:$product);
  let results = (outs Train_FloatTensor:$result);
  let assemblyFormat = "$gradient `,` $operand `,` $product attr-dict `:` type($result)";
}

#endif
