// The compiler's command line: one command a file.
#include <cstdio>
#include <vector>

#include "tools/sheaf/Command.h"

using namespace sheaf;

namespace {

std::vector<tool::Command> commands() {
  return {tool::checkCommand(),    tool::compileCommand(),   tool::inspectCommand(), tool::assembleCommand(),
          tool::verifyCommand(),   tool::sameCommand(),      tool::diffCommand(),    tool::fitCommand(),
          tool::simulateCommand(), tool::reportCommand(),    tool::profileCommand(), tool::initCommand(),
          tool::exportCommand(),   tool::operatorsCommand(), tool::callsCommand()};
}

// "compile" of the table of "sheaf compile".
std::string nameOf(const tool::Command& command) {
  return command.table.command.substr(command.table.command.find(' ') + 1);
}

std::string overview(const std::vector<tool::Command>& all) {
  std::string text = "Sheaf compiles ONNX graphs into training plans that are sharded over ranks by ZeRO.\n\nusage: ";
  for (const tool::Command& command : all)
    text += (&command == &all.front() ? "" : "       ") + command.table.usage.front() + "\n";
  text += "\nCommands\n";
  for (const tool::Command& command : all) {
    std::string name = "  " + nameOf(command);
    text += name + std::string(14 - name.size(), ' ') + command.table.summary + "\n";
  }
  return text +
         "\n`sheaf help COMMAND` or `sheaf COMMAND --help` prints the options of a command, `sheaf --version` the "
         "version.\n"
         "`sheaf-run` runs plans.\n\nExit status: 0 done, 1 refused or failed, 2 wrong usage.\n";
}

std::string markdown(const std::vector<tool::Command>& all) {
  std::string text;
  for (const tool::Command& command : all) text += (text.empty() ? "" : "\n") + command.table.markdown();
  return text;
}

int unknown(const std::string& name, const std::vector<tool::Command>& all) {
  std::vector<std::string> names{"help"};
  for (const tool::Command& command : all) names.push_back(nameOf(command));
  const std::string near = nearest(name, names);
  return tool::misuse(
      cat("unknown command '", name, "'; ", near.empty() ? "see sheaf --help" : cat("did you mean ", near, "?")));
}

}  // namespace

int main(int argc, char** argv) {
  options::Arguments arguments(argv + 1, argv + argc);
  const std::vector<tool::Command> all = commands();
  if (arguments.empty()) {
    std::fputs(overview(all).c_str(), stderr);
    return tool::kMisused;
  }
  std::string name = arguments.front();
  arguments.erase(arguments.begin());
  if (name == "--version") return tool::print("sheaf " SHEAF_VERSION "\n");
  if (name == "--help=markdown") return tool::print(markdown(all));
  if (name == "--help" || name == "-h" || (name == "help" && arguments.empty())) return tool::print(overview(all));
  if (name == "help") {
    name = arguments.front();
    arguments = {"--help"};
  }
  for (const tool::Command& command : all)
    if (nameOf(command) == name) return command.run(arguments);
  return unknown(name, all);
}
