// Interfaces of the `train` dialect.
#ifndef SHEAF_TRAIN_INTERFACES
#define SHEAF_TRAIN_INTERFACES

include "mlir/IR/OpBase.td"

def DifferentiableInterface : OpInterface<"Differentiable"> {
  let description = [{
    Reverse-mode gradient rule of one op. Given the gradients of the op's results (a null Value where a result has
    none), the rule builds ops at the builder's insertion point and returns one gradient per operand, of the operand's
    type, or a null Value where the operand has none (integers, predicates, operands that do not influence the result).
  }];
  let cppNamespace = "::sheaf::train";
  let methods = [InterfaceMethod<
    "Builds the gradients of the operands from those of the results.",
    "void", "buildGradient",
    (ins "::mlir::OpBuilder &":$builder, "::mlir::ValueRange":$resultGradients,
         "::llvm::SmallVectorImpl<::mlir::Value> &":$operandGradients)>];
}

def FusableElementwiseInterface : OpInterface<"FusableElementwise"> {
  let description = [{
    Maps elements at the same index to an element, which a kernel computes in registers: a row of ElementwiseOps.td.
    Its other parts depend on C++ types that the dialect does not know, so they are members of the op classes:
    `emitElement` emits the computation with a builder of the kernel generator's.
  }];
  let cppNamespace = "::sheaf::train";
  let methods = [InterfaceMethod<
    "The cost of one element, in additions.", "int", "operationCost", (ins),
    [{ return ConcreteOp::kOperationCost; }]>];
}

#endif
