// sheaf calls: the functions that plans call, with their operands and attributes, as Markdown.
#include <cstdio>

#include "runtime/plan/Library.h"
#include "tools/sheaf/Arguments.h"

namespace sheaf::tool {

int calls(const std::vector<std::string>& arguments) {
  Arguments parser("calls", "calls");
  if (Status parsed = parser.parse(arguments); !parsed.ok()) return fail(parsed.message());
  if (parser.help)
    return help("Prints the functions that a plan may call, with operands and attributes.\n\nusage: sheaf calls\n");
  std::fputs(plan::libraryReference().c_str(), stdout);
  return 0;
}

}  // namespace sheaf::tool
