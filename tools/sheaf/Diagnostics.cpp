#include "tools/sheaf/Diagnostics.h"

#include <cstdio>

#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/Location.h"

namespace sheaf::tool {

using namespace mlir;

static std::string place(Location loc) {
  if (auto name = dyn_cast<NameLoc>(loc)) return name.getName().str();
  if (auto file = dyn_cast<FileLineColLoc>(loc); file && file.getLine() == 0) return file.getFilename().str();
  if (auto file = dyn_cast<FileLineColLoc>(loc))
    return (file.getFilename().getValue() + ":" + Twine(file.getLine()) + ":" + Twine(file.getColumn())).str();
  if (auto fused = dyn_cast<FusedLoc>(loc))
    for (Location inner : fused.getLocations())
      if (std::string text = place(inner); !text.empty()) return text;
  return "";
}

std::string textOf(Diagnostic& diagnostic) {
  const std::string where = place(diagnostic.getLocation());
  return where + (where.empty() ? "" : ": ") + diagnostic.str();
}

DiagnosticPrinter::DiagnosticPrinter(MLIRContext& context) : ScopedDiagnosticHandler(&context) {
  context.printOpOnDiagnostic(false);
  setHandler([this](Diagnostic& diagnostic) {
    if (diagnostic.getSeverity() == DiagnosticSeverity::Error && ++errors_ > 10) return success();
    const char* severity = diagnostic.getSeverity() == DiagnosticSeverity::Error     ? "error: "
                           : diagnostic.getSeverity() == DiagnosticSeverity::Warning ? "warning: "
                                                                                     : "note: ";
    std::fprintf(stderr, "sheaf: %s%s\n", severity, textOf(diagnostic).c_str());
    return success();
  });
}

}  // namespace sheaf::tool
