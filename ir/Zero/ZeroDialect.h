// The `zero` dialect: see ZeroOps.td.
#pragma once

#include "ir/Train/TrainDialect.h"

#include "ir/Zero/ZeroDialect.h.inc"
#define GET_OP_CLASSES
#include "ir/Zero/ZeroOps.h.inc"
