// States what is known of an input of class labels or ids, as attributes of its argument of @step.
#pragma once

#include <optional>

#include "frontend/onnx/importer/Emitter.h"

namespace sheaf::frontend {

// Where each of the labels is an element of one input, in any order: the input gets the attributes `train.classes` (an
// element lies in [0, classes)) and `train.ignored_label` (or is that). An input of rank 2 that labels are taken from,
// all or some of them, gets `train.tokens`: a row has one for each token. If the graph takes the label of a token from
// a later one, as Hugging Face's causal models do, it gets `train.shifted`: its rows are the tokens themselves.
void stateLabels(const Tensor& labels, int64_t classes, std::optional<int64_t> ignored);

// Gives an input `train.classes`, the number of rows, and `train.ids`, if each of the ids that select rows of a table
// is one of its elements, unchanged. PyTorch's embeddings know no negative ids.
void stateIds(const Tensor& ids, int64_t rows);

// Gives the input of the labels of tokens `train.perplexity` if the loss is the mean of one cross entropy over the
// labels that count, and nothing else: exp(loss) is a perplexity then. A sum that is divided by another number, or a
// mean that also counts ignored labels, is not that mean.
void statePerplexity(const Tensor& loss);

}  // namespace sheaf::frontend
