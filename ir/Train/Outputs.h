// train.output: what the evaluation hands to the host besides the loss.
#pragma once

#include "ir/Train/TrainDialect.h"

#define GET_OP_CLASSES
#include "ir/Train/Outputs.h.inc"
