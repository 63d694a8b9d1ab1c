// The compiler's command line: one subcommand a file.
#include <cstdio>
#include <map>

#include "tools/sheaf/Arguments.h"

using namespace sheaf;

static const char kHelp[] = R"(Sheaf compiles ONNX graphs into ZeRO-sharded training plans.

usage: sheaf COMMAND ...

  compile MODEL.onnx -o OUT.plan   build the training step and the plan of it
  inspect OUT.plan                 what a plan is: memory, communication, or its whole text
  assemble PLAN.mlir -o OUT.plan   turn a plan's text back into a plan
  verify OUT.plan                  prove that it cannot race, deadlock or read garbage
  fit MODEL.onnx --ranks N --memory SIZE   whether it fits, per ZeRO stage
  simulate OUT.plan --profile P    what its step takes on a machine, without the machine
  profile -o P.json                measure this machine for that
  init OUT.plan -o W.safetensors   fresh weights for a graph that has none
  operators                        the ONNX operators that are taken
  calls                            the library functions that a plan may call

`sheaf COMMAND --help` has the options. `sheaf-run` runs plans.
)";

int main(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  std::string command = arguments.empty() ? "" : arguments.front();
  if (command.empty()) {
    std::fputs(kHelp, stderr);
    return 2;
  }
  if (command == "--help" || command == "-h" || command == "help") return tool::help(kHelp);
  if (command == "--version") return tool::help("sheaf " SHEAF_VERSION "\n");
  arguments.erase(arguments.begin());
  const std::map<std::string, int (*)(const std::vector<std::string>&)> commands{
      {"compile", tool::compile}, {"inspect", tool::inspect},     {"assemble", tool::assemble},
      {"init", tool::initialize}, {"operators", tool::operators}, {"verify", tool::verify},
      {"fit", tool::fit},         {"simulate", tool::simulate},   {"profile", tool::profile},
      {"calls", tool::calls}};
  auto found = commands.find(command);
  if (found == commands.end()) return tool::fail("unknown command '" + command + "'; see sheaf --help");
  return found->second(arguments);
}
