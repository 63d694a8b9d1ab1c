// The compiler's command line: one command a file.
#include <cstdio>
#include <vector>

#include "ir/FatalErrors.h"
#include "runtime/base/StandardStreams.h"
#include "tools/options/Completion.h"
#include "tools/options/Manual.h"
#include "tools/sheaf/Command.h"

using namespace sheaf;

namespace {

std::vector<tool::Command> commands() {
  return {tool::checkCommand(),    tool::compileCommand(),   tool::inspectCommand(),   tool::assembleCommand(),
          tool::verifyCommand(),   tool::sameCommand(),      tool::diffCommand(),      tool::fitCommand(),
          tool::simulateCommand(), tool::reportCommand(),    tool::profileCommand(),   tool::initCommand(),
          tool::exportCommand(),   tool::operatorsCommand(), tool::schedulesCommand(), tool::callsCommand()};
}

// "compile" of the table of "sheaf compile".
std::string nameOf(const tool::Command& command) {
  return command.table.command.substr(command.table.command.find(' ') + 1);
}

constexpr const char* kSummary = "Sheaf compiles ONNX graphs into training plans that are sharded over ranks by ZeRO.";
constexpr const char* kExit = "Exit status: 0 done, 1 refused or failed, 2 wrong usage.";

std::string overview(const std::vector<tool::Command>& all) {
  std::string text = cat(kSummary, "\n\nusage: ");
  for (const tool::Command& command : all)
    text += (&command == &all.front() ? "" : "       ") + command.table.usage.front() + "\n";
  text += "\nCommands\n";
  for (const tool::Command& command : all) {
    std::string name = "  " + nameOf(command);
    text += name + std::string(14 - name.size(), ' ') + command.table.summary + "\n";
  }
  return cat(text,
             "\n`sheaf help COMMAND` or `sheaf COMMAND --help` prints the options of a command, `sheaf --version` the "
             "version.\n`sheaf-run` runs plans.\n\n",
             kExit, "\n");
}

std::string manual(const std::vector<tool::Command>& all) {
  std::vector<std::string> usage, pages;
  std::string list = ".SH COMMANDS\n";
  for (const tool::Command& command : all) {
    usage.push_back(command.table.usage.front());
    pages.push_back("sheaf-" + nameOf(command));
    list += cat(".TP\n\\fB", nameOf(command), "\\fR\n", options::roff(command.table.summary), "\n");
  }
  pages.push_back("sheaf-run");
  return cat(options::manualHead("sheaf", SHEAF_VERSION, kSummary, usage), list, ".SH EXIT STATUS\n",
             options::roff(kExit), "\n", options::manualSeeAlso(pages));
}

std::string markdown(const std::vector<tool::Command>& all) {
  std::string text;
  for (const tool::Command& command : all) text += (text.empty() ? "" : "\n") + command.table.markdown();
  return text;
}

int help(options::HelpForm form, const std::vector<tool::Command>& all) {
  std::vector<const options::Table*> tables;
  for (const tool::Command& command : all) tables.push_back(&command.table);
  switch (form) {
    case options::HelpForm::kMarkdown:
      return tool::print(markdown(all));
    case options::HelpForm::kManual:
      return tool::print(manual(all));
    case options::HelpForm::kBash:
      return tool::print(options::bashCompletion("sheaf", tables));
    case options::HelpForm::kZsh:
      return tool::print(options::zshCompletion("sheaf", tables));
    case options::HelpForm::kShort:
    case options::HelpForm::kText:
      break;
  }
  return tool::print(overview(all));
}

int unknown(const std::string& name, const std::vector<tool::Command>& all) {
  for (const char* run : {"run", "train", "eval", "evaluate", "predict", "infer"})
    if (name == run)
      return tool::misuse(cat("unknown command '", name,
                              "': plans are run by the program `sheaf-run`, as in `sheaf-run ",
                              "OUT.plan --data NAME=FILE --steps K`; with --eval it evaluates"));
  std::vector<std::string> names{"help"};
  for (const tool::Command& command : all) names.push_back(nameOf(command));
  const std::string near = nearest(name, names);
  return tool::misuse(
      cat("unknown command '", name, "'; ", near.empty() ? "see sheaf --help" : cat("did you mean ", near, "?")));
}

int run(options::Arguments arguments) {
  const std::vector<tool::Command> all = commands();
  if (arguments.empty()) {
    std::fputs(overview(all).c_str(), stderr);
    return tool::kMisused;
  }
  std::string name = arguments.front();
  arguments.erase(arguments.begin());
  if (name == "--version") return tool::print("sheaf " SHEAF_VERSION "\n");
  if (name == "help" && arguments.empty()) name = "--help";
  Expected<std::optional<options::HelpForm>> form = options::helpFormOf(name);
  if (!form.ok()) return tool::misuse(form.status().message());
  if (*form) return help(**form, all);
  if (name == "help") {
    std::erase_if(arguments, [](const std::string& given) { return given == "--help" || given == "-h"; });
    if (arguments.empty()) return help(options::HelpForm::kText, all);
    name = arguments.front();
    if (arguments.size() > 1)
      return tool::misuse(cat("sheaf help takes one COMMAND: '", name, "' and '", arguments[1], "' are given"));
    arguments = {"--help"};
  }
  for (const tool::Command& command : all)
    if (nameOf(command) == name) return command.run(arguments);
  return unknown(name, all);
}

}  // namespace

int main(int argc, char** argv) {
  openStandardStreams();
  installCompilerCrashHandlers("sheaf");
  const int status = run(options::Arguments(argv + 1, argv + argc));
  const Status written = finishStandardOutput();
  return written.ok() || status != tool::kDone ? status : tool::fail(written.message());
}
