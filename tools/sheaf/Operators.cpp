// sheaf operators: the table of ONNX operators that the importer takes, as Markdown.
#include <cstdio>

#include "frontend/onnx/Import.h"
#include "tools/sheaf/Arguments.h"

namespace sheaf::tool {

int operators(const std::vector<std::string>& arguments) {
  Arguments parser("operators", "operators");
  if (Status parsed = parser.parse(arguments); !parsed.ok()) return fail(parsed.message());
  if (parser.help)
    return help("Prints the ONNX operators that are taken, with their opset versions.\n\nusage: sheaf operators\n");
  std::printf("| domain | operator | opsets |\n|---|---|---|\n");
  for (const auto& op : frontend::supportedOperators()) {
    std::string last = op.last ? "to " + std::to_string(op.last) : "on";
    std::printf("| %s | %s | %lld %s |\n", op.domain.empty() ? "ai.onnx" : op.domain.c_str(), op.name.c_str(),
                static_cast<long long>(op.since), last.c_str());
  }
  return 0;
}

}  // namespace sheaf::tool
