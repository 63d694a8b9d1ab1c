// A program of ours as an ONNX model, to be looked at in ONNX's viewers: one node for each op, in domains of our own.
#pragma once

#include <string>

#include "mlir/IR/BuiltinOps.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::frontend {

// The serialized model of what a phase before the plan leaves: of @step. Domains are "sheaf." and the dialect; library
// calls of a plan are in "sheaf.call". Every op has a function without a body that declares its inputs, outputs and
// attributes; of an op with several numbers of operands they are overloads.
//
// Values of @step are tensors with their types; updates and other ops without results get an output of their own. In a
// plan values are the contents of buffers: an instruction that writes a buffer makes its next version (uint8[bytes]),
// and takes the version before where it leaves bytes of it as they were. A record makes a value that the waits for it
// take, and what a wait makes is taken by the next instruction of its stream.
std::string phaseModel(mlir::ModuleOp module);
// The serialized model of the run of one step of a plan: prologue, parts, body and epilogue.
std::string planModel(const plan::Plan& plan);

}  // namespace sheaf::frontend
