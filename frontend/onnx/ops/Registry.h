// The registry of ONNX operators: the rows of the handlers' tables, the operators that are known not to be supported,
// and a node of each supported one to try it on. `sheaf operators`, the documentation and the tests are made from it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

namespace sheaf::frontend {

// Cases of ONNX's node tests, by a regular expression that matches the whole name, and why they are left out; none if
// empty.
struct NodeTestsLeftOut {
  std::string cases, why;
};

struct RegisteredOperator {
  std::string domain = {}, name = {};    // the default domain is "ai.onnx"
  int64_t since = 1, last = 0;           // 0: still current
  std::string unsupported = {};          // why there is no handler; "" if there is one
  std::string sample = {};               // operands and attributes of one node; "" if there is no sample
  std::string lowering = {};             // in words, where there is no sample
  std::string limits = {};               // what a user should know, apart from the reasons below
  int64_t nodeTests = 0;                 // cases of ONNX's node tests that test/models/onnx-node-tests.xz has
  NodeTestsLeftOut leftOut = {};         // that fail
  NodeTestsLeftOut leftOutOfPlans = {};  // that the evaluator computes, but no plan
  NodeTestsLeftOut noGradient = {};      // whose gradient is not the derivative

  bool supported() const { return unsupported.empty(); }
  bool covers(int64_t opset) const { return supported() && since <= opset && (last == 0 || opset <= last); }
};

// All of them, sorted by domain, name and opset.
std::vector<RegisteredOperator> registeredOperators();

// The name of the sample's node, and so of the locations of all that is made of it.
inline constexpr const char* kSampleNode = "sample";

// The serialized model of an operator with a sample: its node on parameters f0, f1, ... (for the floating-point
// operands), and a loss that is the sum of its results. Inputs of integers and booleans are data of zeros. "" after an
// error in the sample, which goes to stderr.
std::string sampleModel(const RegisteredOperator& op);

// The same, imported as importOnnx does; null after a diagnostic.
mlir::OwningOpRef<mlir::ModuleOp> importSample(mlir::MLIRContext& context, const RegisteredOperator& op);

}  // namespace sheaf::frontend
