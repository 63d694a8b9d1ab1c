// sheaf operators: the table of ONNX operators that the importer takes, as Markdown, or how much of a folder of models
// it covers.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>

#include "frontend/onnx/Coverage.h"
#include "frontend/onnx/Import.h"
#include "mlir/IR/Diagnostics.h"
#include "tools/options/Rows.h"
#include "tools/sheaf/Command.h"
#include "tools/sheaf/Trained.h"

namespace fs = std::filesystem;

namespace sheaf::tool {
namespace {

struct OperatorsOptions {
  std::string coverage;
};

options::Table operatorsTable() {
  using O = OperatorsOptions;
  using Row = options::Rows<O>;
  options::Table table{"sheaf operators",
                       "Prints the supported ONNX operators, with their opset versions.",
                       {"sheaf operators [--coverage DIR]"},
                       {},
                       {},
                       ""};
  table.sections = {{"Options",
                     {Row::text<&O::coverage>("--coverage", "DIR",
                                              "Count instead how many of the models in a folder (*.onnx, in folders "
                                              "within it, too) have supported operators only, and what the others "
                                              "lack.")}}};
  return table;
}

void printTable() {
  std::printf("| domain | operator | opsets |\n|---|---|---|\n");
  for (const auto& op : frontend::supportedOperators()) {
    std::string last = op.last ? "to " + std::to_string(op.last) : "on";
    std::printf("| %s | %s | %lld %s |\n", op.domain.empty() ? "ai.onnx" : op.domain.c_str(), op.name.c_str(),
                static_cast<long long>(op.since), last.c_str());
  }
}

int printCoverage(const std::string& folder) {
  std::error_code problem;
  std::vector<fs::path> paths;
  for (auto it = fs::recursive_directory_iterator(folder, problem);
       !problem && it != fs::recursive_directory_iterator(); it.increment(problem))
    if (it->path().extension() == ".onnx" && it->is_regular_file()) paths.push_back(it->path());
  if (problem) return fail("cannot read the folder " + folder + ": " + problem.message());
  std::sort(paths.begin(), paths.end());

  struct Lack {
    int64_t models = 0, nodes = 0;
  };
  std::map<std::string, Lack> lacking;
  int64_t covered = 0, unreadable = 0, nodes = 0, supported = 0;
  std::unique_ptr<mlir::MLIRContext> context = makeContext();
  mlir::ScopedDiagnosticHandler quiet(context.get(), [](mlir::Diagnostic&) { return mlir::success(); });
  for (const fs::path& path : paths) {
    auto uses = frontend::operatorUses(*context, path.string());
    if (mlir::failed(uses)) {
      ++unreadable;
      continue;
    }
    std::map<std::string, int64_t> missing;
    for (const frontend::OperatorUse& use : *uses) {
      nodes += use.nodes;
      if (use.supported)
        supported += use.nodes;
      else
        missing[use.domain + "." + use.name] += use.nodes;
    }
    covered += missing.empty();
    for (const auto& [name, count] : missing) ++lacking[name].models, lacking[name].nodes += count;
  }
  auto number = [](int64_t v) { return static_cast<long long>(v); };
  std::printf(
      "%lld models: %lld have supported operators only, %lld cannot be read. %lld of %lld nodes are supported.\n",
      number(int64_t(paths.size())), number(covered), number(unreadable), number(supported), number(nodes));
  std::vector<std::pair<std::string, Lack>> rows(lacking.begin(), lacking.end());
  std::stable_sort(rows.begin(), rows.end(), [](auto& a, auto& b) { return a.second.models > b.second.models; });
  if (!rows.empty()) std::printf("\n| not supported | models | nodes |\n|---|---|---|\n");
  for (const auto& [name, lack] : rows)
    std::printf("| %s | %lld | %lld |\n", name.c_str(), number(lack.models), number(lack.nodes));
  return kDone;
}

int operators(OperatorsOptions& options, const options::Given&) {
  if (!options.coverage.empty()) return printCoverage(options.coverage);
  printTable();
  return kDone;
}

}  // namespace

Command operatorsCommand() {
  return command(operatorsTable(), operators);
}

}  // namespace sheaf::tool
