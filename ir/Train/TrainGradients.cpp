#include "ir/Train/TrainDialect.h"
