// Activation functions: one table for the operators of their names and for the functions inside of RNN, GRU and LSTM.
#pragma once

#include "frontend/onnx/importer/Emitter.h"

namespace sheaf::frontend {

struct ActivationKind {
  llvm::StringRef name;               // in lower case
  std::optional<double> alpha, beta;  // defaults of the parameters that the function has
  bool recurrent;                     // true if ONNX's recurrent operators have it
  Tensor (*build)(Emitter& e, const Tensor& x, double alpha, double beta);
};

// Null if no function has the name. ONNX defines ThresholdedRelu at its threshold in two ways: x > alpha for the
// operator, x >= alpha inside of RNN, GRU and LSTM.
const ActivationKind* findActivation(llvm::StringRef lowerCaseName);
const ActivationKind* findRecurrentActivation(llvm::StringRef lowerCaseName);

// log(1 + e^x)
Tensor softplus(Emitter& e, const Tensor& x);

}  // namespace sheaf::frontend
