#include "tools/sheaf/Diagnostics.h"

#include <cstdio>

#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/Location.h"
#include "runtime/base/Print.h"

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
  std::string text = diagnostic.str();
  if (where.empty()) return text;
  // The place is a node of the graph; the op that it became says no more to a user.
  if (const size_t op = text.find("' op "); text.starts_with("'train.") && op < text.find(' ')) text.erase(0, op + 5);
  return where + ": " + text;
}

DiagnosticPrinter::DiagnosticPrinter(MLIRContext& context) : ScopedDiagnosticHandler(&context) {
  context.printOpOnDiagnostic(false);
  setHandler([this](Diagnostic& diagnostic) {
    if (diagnostic.getSeverity() == DiagnosticSeverity::Error && ++errors_ > 10) return success();
    const char* severity = diagnostic.getSeverity() == DiagnosticSeverity::Error     ? "error: "
                           : diagnostic.getSeverity() == DiagnosticSeverity::Warning ? "warning: "
                                                                                     : "note: ";
    // In one line: names may have line ends, or a NUL.
    out::fprintf(stderr, "sheaf: %s%s\n", severity, shownLine(textOf(diagnostic)).c_str());
    return success();
  });
}

}  // namespace sheaf::tool
