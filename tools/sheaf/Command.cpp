#include "tools/sheaf/Command.h"

#include <cstdio>

#include "runtime/base/Print.h"

namespace sheaf::tool {
namespace {

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
  std::fwrite(bytes.data(), 1, bytes.size(), stdout);
  return kDone;
}

bool parsed(const options::Table& table, const options::Arguments& arguments, void* target, options::Given& given,
            int& status) {
  Expected<options::Given> read = table.parse(arguments, target);
  if (read.ok()) given = std::move(*read);
  if (!read.ok()) status = misuse(read.status().message());
  if (!given.help) return !read.ok();
  switch (*given.help) {
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
