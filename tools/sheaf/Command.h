// The commands of `sheaf`: each has a table of options, and a function that does what it is for.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/PhaseProgress.h"
#include "tools/options/Rows.h"

namespace sheaf::tool {

// The exit status of `sheaf` and of `sheaf-run`.
enum Exit { kDone = 0, kFailed = 1, kMisused = 2 };  // refused or failed; used in a wrong way

struct Command {
  options::Table table;
  // Returns the exit status, and has printed what was wrong.
  std::function<int(const options::Arguments& arguments)> run;
};

Command compileCommand();
Command inspectCommand();
Command assembleCommand();
Command verifyCommand();
Command sameCommand();
Command diffCommand();
Command checkCommand();
Command fitCommand();
Command simulateCommand();
Command reportCommand();
Command profileCommand();
Command initCommand();
Command exportCommand();
Command operatorsCommand();
Command schedulesCommand();
Command callsCommand();

// Print "sheaf: error: MESSAGE" and return kFailed or kMisused.
int fail(const std::string& message);
int misuse(const std::string& message);

// Print on stdout and return kDone. print() takes text for people or programs, printBytes() bytes of any kind.
int print(const std::string& text);
int printBytes(const std::string& bytes);

// Prints a line on stderr on what has been done, as in "wrote model.plan (12 KiB)"; not with --quiet.
void note(const std::string& text);

// Two command lines for a command's help (Examples.cpp).
std::vector<std::string> examplesOf(const std::string& command);

// The row of --quiet, which every command has.
options::Option quietRow();
// While it exists, the command is quiet or shows its progress.
class OutputMode {
 public:
  OutputMode(const std::string& command, const options::Given& given);
  ~OutputMode();

 private:
  const bool before_;  // true if the command that calls this one is quiet
  std::unique_ptr<PhaseProgress> progress_;
};

// Reads a command line. True: there is nothing else to do, and `status` is the exit status.
bool parsed(const options::Table& table, const options::Arguments& arguments, void* target, options::Given& given,
            int& status);

// A command from its table and what it does with the options read.
template <typename Target>
Command command(options::Table table, int (*run)(Target& options, const options::Given& given)) {
  if (table.sections.empty()) table.sections.push_back({"Options", {}});
  table.sections.back().options.push_back(quietRow());
  table.examples = examplesOf(table.command);
  auto start = [table, run](const options::Arguments& arguments) {
    Target target;
    options::Given given;
    int status = kDone;
    if (parsed(table, arguments, &target, given, status)) return status;
    OutputMode mode(table.command, given);
    return run(target, given);
  };
  return {std::move(table), start};
}

}  // namespace sheaf::tool
