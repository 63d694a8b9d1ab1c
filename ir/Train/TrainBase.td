// The `train` dialect: types, enums, attributes and base classes.
#ifndef SHEAF_TRAIN_BASE
#define SHEAF_TRAIN_BASE

include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/EnumAttr.td"
include "mlir/IR/OpBase.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/Interfaces/InferTypeOpInterface.td"
include "mlir/Interfaces/SideEffectInterfaces.td"
include "ir/Train/TrainInterfaces.td"

def TrainDialect : Dialect {
  let name = "train";
  let cppNamespace = "::sheaf::train";
  let description = [{
    Value-semantic operations on static ranked tensors, from which a training step is built: forward, loss, backward,
    optimizer. One module holds `train.parameter` symbols, `train.optimizer` symbols and one `func.func @step` whose
    arguments are the data inputs of one rank (argument attribute `train.name`).

    Conventions. Shapes are static. Broadcasting is explicit: `train.broadcast` expands size-1 dimensions and keeps the
    rank. `train.reduce` keeps reduced dimensions as size 1. Scalars are `tensor<f32>`. Module attributes: `train.ranks`
    (i64), `train.seed` (i64), `train.decisions` (strings that say what import and lifting decided).
  }];
  let useDefaultAttributePrinterParser = 1;
}

// The types that ops take; runtime/plan/ElementTypes.h has a row for each.
defvar floatTypes = [F32, F64, BF16, F16];
defvar integerTypes = [I<8>, I<16>, I32, I64, UI<8>];

def Train_Float : AnyTypeOf<floatTypes>;
def Train_Tensor : StaticShapeTensorOf<floatTypes # [I1] # integerTypes>;
def Train_FloatTensor : StaticShapeTensorOf<floatTypes>;
def Train_IndexTensor : StaticShapeTensorOf<[I32, I64]>;
def Train_BoolTensor : StaticShapeTensorOf<[I1]>;
def Train_IntegerTensor : StaticShapeTensorOf<[I1] # integerTypes>;
def Train_NumberTensor : StaticShapeTensorOf<floatTypes # integerTypes>;

def Train_ReduceKind : I32EnumAttr<"ReduceKind", "what a reduction computes", [
    I32EnumAttrCase<"sum", 0>, I32EnumAttrCase<"mean", 1>, I32EnumAttrCase<"max", 2>, I32EnumAttrCase<"min", 3>,
    I32EnumAttrCase<"prod", 4>]> { let cppNamespace = "::sheaf::train"; let genSpecializedAttr = 0; }
def Train_ReduceKindAttr : EnumAttr<TrainDialect, Train_ReduceKind, "reduce_kind"> { let assemblyFormat = "$value"; }

def Train_ComparePredicate : I32EnumAttr<"ComparePredicate", "comparison", [
    I32EnumAttrCase<"eq", 0>, I32EnumAttrCase<"ne", 1>, I32EnumAttrCase<"lt", 2>, I32EnumAttrCase<"le", 3>,
    I32EnumAttrCase<"gt", 4>, I32EnumAttrCase<"ge", 5>]> { let cppNamespace = "::sheaf::train"; let genSpecializedAttr = 0; }
def Train_ComparePredicateAttr : EnumAttr<TrainDialect, Train_ComparePredicate, "compare_predicate"> { let assemblyFormat = "$value"; }

// What a matrix product c = a b does to its result before it is stored, or computes besides. GELU is the tanh form.
def Train_MatMulEpilogue : I32EnumAttr<"MatMulEpilogue", "what a matrix product does besides", [
    I32EnumAttrCase<"bias", 1>, I32EnumAttrCase<"gelu", 2>, I32EnumAttrCase<"bias_gelu", 3>,
    I32EnumAttrCase<"gelu_grad", 4>, I32EnumAttrCase<"sum_lhs", 5>, I32EnumAttrCase<"sum_rhs", 6>]> { let cppNamespace = "::sheaf::train"; let genSpecializedAttr = 0; }
def Train_MatMulEpilogueAttr : EnumAttr<TrainDialect, Train_MatMulEpilogue, "epilogue"> { let assemblyFormat = "$value"; }

def Train_ScatterKind : I32EnumAttr<"ScatterKind", "what an update does to the element that its index names", [
    I32EnumAttrCase<"replace", 0>, I32EnumAttrCase<"add", 1>, I32EnumAttrCase<"mul", 2>, I32EnumAttrCase<"min", 3>,
    I32EnumAttrCase<"max", 4>]> { let cppNamespace = "::sheaf::train"; let genSpecializedAttr = 0; }
def Train_ScatterKindAttr : EnumAttr<TrainDialect, Train_ScatterKind, "scatter_kind"> { let assemblyFormat = "$value"; }

// OptimizerOp has the formulas. Kinds that the runtime computes have the same word in plan.proto (StepScalar.Kind), by
// which LowerZero.cpp maps them; the test ScalarKind.HasItsWordInThePlan fails if one lacks it. clip_scale and finite are
// computed on the device.
def Train_ScalarKind : I32EnumAttr<"ScalarKind", "how a step scalar is computed", [
    I32EnumAttrCase<"constant", 1>, I32EnumAttrCase<"lr_times", 2>, I32EnumAttrCase<"one_minus_lr_times", 3>,
    I32EnumAttrCase<"lr_over_bias_correction", 4>, I32EnumAttrCase<"bias_correction", 5>,
    I32EnumAttrCase<"sqrt_bias_correction", 6>, I32EnumAttrCase<"step", 7>, I32EnumAttrCase<"first_step", 8>,
    I32EnumAttrCase<"clip_scale", 9>, I32EnumAttrCase<"finite", 10>]> { let cppNamespace = "::sheaf::train"; let genSpecializedAttr = 0; }
def Train_ScalarAttr : AttrDef<TrainDialect, "Scalar"> {
  let mnemonic = "scalar";
  let summary = "a step scalar: its kind and its value";
  let parameters = (ins EnumParameter<Train_ScalarKind>:$kind, "::mlir::FloatAttr":$value);
  let builders = [AttrBuilder<(ins "ScalarKind":$kind, CArg<"double", "0">:$value), [{
    return $_get($_ctxt, kind, FloatAttr::get(Float64Type::get($_ctxt), value));
  }]>];
  let assemblyFormat = "`<` $kind `,` $value `>`";
}

// The pass that needs gathered parameters first. LowerZero.cpp maps both to Collective.Phase of plan.proto.
def Train_Phase : I32EnumAttr<"Phase", "a pass over the graph", [
    I32EnumAttrCase<"forward", 1>, I32EnumAttrCase<"backward", 2>]> {
  let cppNamespace = "::sheaf::train";
  let genSpecializedAttr = 0;
}
def Train_PhaseAttr : EnumAttr<TrainDialect, Train_Phase, "phase"> { let assemblyFormat = "$value"; }

// How much of the forward pass the backward pass computes again: see train-recompute.
def Train_Recomputation : I32EnumAttr<"Recomputation", "what is computed again in the backward pass", [
    I32EnumAttrCase<"none", 0>, I32EnumAttrCase<"kernels", 1>, I32EnumAttrCase<"all", 2>]> {
  let cppNamespace = "::sheaf::train";
  let genSpecializedAttr = 0;
}

// What memory holds, and what products are rounded to: see train-set-precision.
def Train_Precision : I32EnumAttr<"Precision", "what parameters, activations and gradients are held in", [
    I32EnumAttrCase<"f32", 0>, I32EnumAttrCase<"tf32", 1>, I32EnumAttrCase<"bf16", 2>,
    I32EnumAttrCase<"f16", 3>]> { let cppNamespace = "::sheaf::train"; let genSpecializedAttr = 0; }

def Train_SourceAttr : AttrDef<TrainDialect, "Source"> {
  let mnemonic = "source";
  let summary = "where a parameter's initial bytes lie";
  let description = [{
    Raw little-endian bytes of the parameter in its own layout, in `file` (relative to the model's folder, or the model
    itself) at `offset`, `length` bytes long. Nothing is read while compiling.
  }];
  let parameters = (ins "::mlir::StringAttr":$file, "int64_t":$offset, "int64_t":$length);
  let assemblyFormat = "`<` $file `,` $offset `,` $length `>`";
}

class Train_Op<string mnemonic, list<Trait> traits = []> : Op<TrainDialect, mnemonic, traits>;

// A pure op with a gradient rule (TrainGradients*.cpp).
class Train_DiffOp<string mnemonic, list<Trait> traits = []> : Train_Op<mnemonic,
    !listconcat([Pure, DeclareOpInterfaceMethods<DifferentiableInterface>], traits)>;

// A pure op through which no gradient flows.
class Train_PureOp<string mnemonic, list<Trait> traits = []> : Train_Op<mnemonic, !listconcat([Pure], traits)>;

// Result types follow from operands and attributes (TrainInference.cpp).
defvar Infer = DeclareOpInterfaceMethods<InferTypeOpInterface>;

#endif
