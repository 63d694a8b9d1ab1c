#include "ir/Train/Evaluator.h"
