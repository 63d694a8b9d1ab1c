// sheaf operators: the registry of ONNX operators, as Markdown or JSON, or how much of a folder of models it covers.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>

#include "frontend/onnx/ops/Registry.h"
#include "frontend/onnx/survey/Coverage.h"
#include "mlir/IR/Diagnostics.h"
#include "runtime/base/Json.h"
#include "runtime/base/Print.h"
#include "runtime/base/Text.h"
#include "tools/options/Rows.h"
#include "tools/sheaf/Command.h"
#include "tools/sheaf/OperatorFacts.h"
#include "tools/sheaf/Trained.h"

namespace fs = std::filesystem;

namespace sheaf::tool {
namespace {

struct OperatorsOptions {
  std::string coverage, format = "markdown";
};

options::Table operatorsTable() {
  using O = OperatorsOptions;
  using Row = options::Rows<O>;
  options::Table table{"sheaf operators",
                       "Prints the ONNX operators: which are supported, as of which opset, what they become, and what "
                       "executes and tests them.",
                       {"sheaf operators [--format json] [--coverage DIR]"},
                       {},
                       {},
                       ""};
  table.sections = {{"Options",
                     {Row::word<&O::format>("--format", {"markdown", "json"}, "How the table is printed."),
                      Row::text<&O::coverage>("--coverage", "DIR",
                                              "Count instead how many of the models in a folder (*.onnx, in folders "
                                              "within it, too) have supported operators only, and what the others "
                                              "lack.")}}};
  return table;
}

using frontend::RegisteredOperator;

std::string opsetsOf(const RegisteredOperator& op) {
  return op.last ? cat(op.since, " to ", op.last) : cat("from ", op.since);
}

std::string joined(const std::vector<std::string>& list) {
  std::string text;
  for (const std::string& one : list) text += (text.empty() ? "" : ", ") + one;
  return text;
}

std::string gradientText(const RegisteredOperator& op, const OperatorFacts& facts) {
  if (op.sample.empty() || facts.floats == 0) return "";
  std::string text;
  if (facts.gradients.empty())
    text = "none";
  else if (int64_t(facts.gradients.size()) == facts.floats)
    text = "yes";
  else
    for (int64_t place : facts.gradients) text += cat(text.empty() ? "of input " : ", ", place);
  return op.noGradient.why.empty() ? text : cat(text, "; ", op.noGradient.why);
}

std::string testsText(const RegisteredOperator& op) {
  std::string text = op.sample.empty() ? "" : "sample";
  if (op.nodeTests) text += cat(text.empty() ? "" : ", ", op.nodeTests, " of ONNX's");
  return text;
}

// What its row says, and the reasons for which cases are left out, with the cases.
std::string limitsText(const RegisteredOperator& op) {
  std::string text = op.limits;
  for (const frontend::NodeTestsLeftOut* left : {&op.leftOut, &op.leftOutOfPlans})
    if (!left->why.empty()) text += cat(text.empty() ? "" : "; ", left->why, " (`", left->cases, "`)");
  return text;
}

// A bar would end the cell.
std::string cell(std::string text) {
  for (size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) text.insert(at, 1, '\\');
  return text;
}

struct Row {
  RegisteredOperator op;
  OperatorFacts facts;
};

std::vector<Row> rowsOfTable() {
  std::vector<Row> rows;
  std::unique_ptr<mlir::MLIRContext> context = makeContext();
  for (RegisteredOperator& op : frontend::registeredOperators()) {
    OperatorFacts facts;
    if (!op.sample.empty()) facts = factsOf(*context, op);
    rows.push_back({std::move(op), std::move(facts)});
  }
  return rows;
}

std::string markdown(const std::vector<Row>& rows) {
  std::string text =
      "# ONNX operators\n\n"
      "Derived by importing and lowering a sample of each operator: the `train` ops that it becomes (other attributes "
      "may become others), whether its floating-point operands have gradients, and what executes forward and backward "
      "pass: a fused kernel, or library calls (`sheaf calls`). Where nothing is named, nothing is computed. *Tests*: "
      "the "
      "sample is compiled, and its gradient compared with differences, as are ONNX's own node tests, through compiled "
      "plans; *limits* are those of them that are left out.\n";
  std::string domain, unsupported;
  for (const auto& [op, facts] : rows) {
    if (!op.supported()) {
      unsupported += cat("| ", op.name, " | ", opsetsOf(op), " | ", op.unsupported, " |\n");
      continue;
    }
    if (op.domain != domain)
      text += cat("\n## ", op.domain,
                  "\n\n| operator | opsets | lowering | gradient | CPU | CUDA | tests | limits |\n"
                  "|---|---|---|---|---|---|---|---|\n");
    domain = op.domain;
    const std::string lowering = op.sample.empty()     ? op.lowering
                                 : facts.error.empty() ? joined(facts.lowering)
                                                       : facts.error;
    text +=
        cat("| ", op.name, " | ", opsetsOf(op), " | ", cell(lowering), " | ", gradientText(op, facts), " | ",
            joined(facts.cpu), " | ", joined(facts.cuda), " | ", testsText(op), " | ", cell(limitsText(op)), " |\n");
  }
  return cat(text, "\n## Not supported\n\n| operator | opsets | why |\n|---|---|---|\n", unsupported);
}

json::Array texts(const std::vector<std::string>& list) {
  return json::Array(list.begin(), list.end());
}

json::Value leftOutJson(const frontend::NodeTestsLeftOut& left) {
  if (left.cases.empty()) return {};
  return json::Object{{"cases", left.cases}, {"why", left.why}};
}

std::string jsonText(const std::vector<Row>& rows) {
  json::Array list;
  for (const auto& [op, facts] : rows) {
    json::Object object{{"domain", op.domain}, {"operator", op.name}, {"since", op.since}, {"last", op.last}};
    if (!op.supported()) object.set("unsupported", op.unsupported);
    if (!op.lowering.empty()) object.set("note", op.lowering);
    if (!op.sample.empty()) {
      object.set("sample", op.sample);
      if (!facts.error.empty()) object.set("error", facts.error);
      object.set("lowering", texts(facts.lowering));
      object.set("floats", facts.floats);
      object.set("gradients", json::Array(facts.gradients.begin(), facts.gradients.end()));
      object.set("cpu", texts(facts.cpu));
      object.set("cuda", texts(facts.cuda));
    }
    if (!op.limits.empty()) object.set("limits", op.limits);
    object.set("node_tests", op.nodeTests);
    object.set("left_out", leftOutJson(op.leftOut));
    object.set("left_out_of_plans", leftOutJson(op.leftOutOfPlans));
    object.set("no_gradient", leftOutJson(op.noGradient));
    list.push_back(std::move(object));
  }
  return json::write(json::Object{{"operators", std::move(list)}}, 1) + "\n";
}

int printCoverage(const std::string& folder) {
  std::error_code problem;
  std::vector<fs::path> paths;
  for (auto it = fs::recursive_directory_iterator(folder, problem);
       !problem && it != fs::recursive_directory_iterator(); it.increment(problem))
    if (it->path().extension() == ".onnx" && it->is_regular_file()) paths.push_back(it->path());
  if (problem) return fail("cannot read the folder " + folder + ": " + problem.message());
  if (paths.empty())
    return fail(cat("--coverage ", folder, ": no file in this folder, or in one below it, has a name in .onnx"));
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
  out::printf("%s: %lld have supported operators only, %lld cannot be read. %lld of %lld nodes are supported.\n",
              counted(paths.size(), "model").c_str(), number(covered), number(unreadable), number(supported),
              number(nodes));
  std::vector<std::pair<std::string, Lack>> rows(lacking.begin(), lacking.end());
  std::stable_sort(rows.begin(), rows.end(), [](auto& a, auto& b) { return a.second.models > b.second.models; });
  if (!rows.empty()) out::printf("\n| not supported | models | nodes |\n|---|---|---|\n");
  for (const auto& [name, lack] : rows)
    out::printf("| %s | %lld | %lld |\n", shownLine(name).c_str(), number(lack.models), number(lack.nodes));
  return kDone;
}

int operators(OperatorsOptions& options, const options::Given&) {
  if (!options.coverage.empty()) return printCoverage(options.coverage);
  const std::vector<Row> rows = rowsOfTable();
  return print(options.format == "json" ? jsonText(rows) : markdown(rows));
}

}  // namespace

Command operatorsCommand() {
  return command(operatorsTable(), operators);
}

}  // namespace sheaf::tool
