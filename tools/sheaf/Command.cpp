#include "tools/sheaf/Command.h"

#include <cstdio>

#include "runtime/base/Print.h"
#include "runtime/base/Text.h"
#include "runtime/plan/PlanFile.h"

namespace sheaf::tool {
namespace {

bool isQuiet = false;

int report(const std::string& message, Exit status) {
  out::fprintf(stderr, "sheaf: error: %s\n", shownMessage(message).c_str());
  return status;
}

}  // namespace

int fail(const std::string& message) {
  return report(message, kFailed);
}

int misuse(const std::string& message) {
  return report(message, kMisused);
}

int print(const std::string& text) {
  return printBytes(shown(text));
}

int printBytes(const std::string& bytes) {
  out::clearLine();
  std::fwrite(bytes.data(), 1, bytes.size(), stdout);
  return kDone;
}

void note(const std::string& text) {
  if (!isQuiet) out::fprintf(stderr, "sheaf: %s\n", shownLine(text).c_str());
}

options::Option quietRow() {
  options::Option row{
      "--quiet", "",    "",
      "",        "",    "Print results, warnings and errors alone: no progress, and no line about written files.",
      "",        false, {}};
  row.set = [](void*, const std::string&) { return Status(); };
  return row;
}

OutputMode::OutputMode(const std::string& command, const options::Given& given) : before_(isQuiet) {
  isQuiet = given.has("--quiet");
  if (!isQuiet) progress_ = std::make_unique<PhaseProgress>(command);
}

OutputMode::~OutputMode() {
  isQuiet = before_;
}

bool parsed(const options::Table& table, const options::Arguments& arguments, void* target, options::Given& given,
            int& status) {
  Expected<options::Given> read = table.parse(arguments, target);
  if (read.ok()) given = std::move(*read);
  if (!read.ok()) status = misuse(read.status().message());
  if (!given.help && read.ok() && table.positional.syntax == "MODEL.onnx")
    if (const std::string& model = table.positional.text(target); plan::isPlanFile(model)) {
      status = fail(cat(model, " is a plan, not an ONNX model: `sheaf-run ", shellPath(model),
                        "` runs it, `sheaf inspect ", shellPath(model), "` shows it"));
      return true;
    }
  if (!given.help) return !read.ok();
  switch (*given.help) {
    case options::HelpForm::kShort:
      status = print(table.shortHelp());
      break;
    case options::HelpForm::kMarkdown:
      status = print(table.markdown());
      break;
    case options::HelpForm::kManual:
      status = print(table.manual(SHEAF_VERSION, {"sheaf", "sheaf-run"}));
      break;
    default:
      status = print(table.help());
  }
  return true;
}

}  // namespace sheaf::tool
