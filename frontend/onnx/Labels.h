// What is known of an input of class labels: attributes of its argument of @step.
#pragma once

#include <optional>

#include "frontend/onnx/Emitter.h"

namespace sheaf::frontend {

// Where each of the labels is an element of one input, in any order: the input gets the attributes `train.classes` (an
// element lies in [0, classes)) and `train.ignored_label` (or is that). An input of rank 2 that labels are taken from,
// all or some of them, gets `train.tokens`: a row has one for each token.
void stateLabels(const Tensor& labels, int64_t classes, std::optional<int64_t> ignored);

// Where the loss is the mean of one cross entropy, and nothing else, of labels of tokens: their input gets
// `train.perplexity`, as exp(loss) is one.
void statePerplexity(const Tensor& loss);

}  // namespace sheaf::frontend
