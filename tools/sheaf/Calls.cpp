// sheaf calls: the functions that plans call, with their operands and attributes, as Markdown.
#include "runtime/plan/Library.h"
#include "tools/sheaf/Command.h"

namespace sheaf::tool {
namespace {

struct CallsOptions {};

int calls(CallsOptions&, const options::Given&) {
  return print(plan::libraryReference());
}

}  // namespace

Command callsCommand() {
  return command(options::Table{"sheaf calls",
                                "Prints the library functions that a plan may call, with operands and attributes.",
                                {"sheaf calls"},
                                {},
                                {},
                                ""},
                 calls);
}

}  // namespace sheaf::tool
