// What the predicates of train.compare mean.
#pragma once

#include "ir/Train/TrainDialect.h"

namespace sheaf::train {

template <typename T>
bool holds(ComparePredicate predicate, T x, T y) {
  switch (predicate) {
    case ComparePredicate::eq:
      return x == y;
    case ComparePredicate::ne:
      return x != y;
    case ComparePredicate::lt:
      return x < y;
    case ComparePredicate::le:
      return x <= y;
    case ComparePredicate::gt:
      return x > y;
    case ComparePredicate::ge:
      return x >= y;
  }
  llvm_unreachable("predicate");
}

}  // namespace sheaf::train
