// sheaf operators: the table of ONNX operators that the importer takes, as Markdown.
#include <cstdio>

#include "frontend/onnx/Import.h"
#include "tools/sheaf/Command.h"

namespace sheaf::tool {
namespace {

struct OperatorsOptions {};

int operators(OperatorsOptions&, const options::Given&) {
  std::printf("| domain | operator | opsets |\n|---|---|---|\n");
  for (const auto& op : frontend::supportedOperators()) {
    std::string last = op.last ? "to " + std::to_string(op.last) : "on";
    std::printf("| %s | %s | %lld %s |\n", op.domain.empty() ? "ai.onnx" : op.domain.c_str(), op.name.c_str(),
                static_cast<long long>(op.since), last.c_str());
  }
  return kDone;
}

}  // namespace

Command operatorsCommand() {
  return command(options::Table{"sheaf operators",
                                "Prints the supported ONNX operators, with their opset versions.",
                                {"sheaf operators"},
                                {},
                                {},
                                ""},
                 operators);
}

}  // namespace sheaf::tool
