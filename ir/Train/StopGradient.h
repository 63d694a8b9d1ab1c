// train.stop_gradient: a value through which no gradient passes.
#pragma once

#include "ir/Train/TrainDialect.h"

#define GET_OP_CLASSES
#include "ir/Train/StopGradient.h.inc"
