// The training graph that a plan was made from, for `sheaf report`: names, modules, shapes and edges of its ops, before
// and after sharding. It follows the plan in its file (runtime/plan/PlanFile.h), and nothing that runs reads it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "mlir/IR/BuiltinOps.h"
#include "runtime/base/Json.h"
#include "runtime/base/Status.h"

namespace sheaf::tool {

class PlanGraph {
 public:
  // `scopes`: frontend::moduleScopes() of the model.
  explicit PlanGraph(std::map<std::string, std::string> scopes) : scopes_(std::move(scopes)) {}

  // Adds the step of a module of the phases `train` or `zero`.
  void add(mlir::ModuleOp module, const std::string& name);
  // JSON in zlib's format; docs/report.md describes it.
  Expected<std::string> bytes() const;

 private:
  int64_t text(const std::string& text);
  int64_t scope(const std::string& path);
  // The module of a parameter is what its name has before the last dot.
  std::string scopeOf(const std::string& label) const;

  std::map<std::string, std::string> scopes_;
  std::map<std::string, int64_t> textIndices_, scopeIndices_;
  json::Array texts_, scopePaths_, graphs_;
};

}  // namespace sheaf::tool
