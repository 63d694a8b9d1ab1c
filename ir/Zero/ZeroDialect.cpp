// Registration of the `zero` dialect.
#include "ir/Zero/ZeroDialect.h"

using namespace mlir;
using namespace sheaf::zero;

#include "ir/Zero/ZeroDialect.cpp.inc"
#define GET_OP_CLASSES
#include "ir/Zero/ZeroOps.cpp.inc"

void ZeroDialect::initialize() {
  addOperations<
#define GET_OP_LIST
#include "ir/Zero/ZeroOps.cpp.inc"
      >();
}
