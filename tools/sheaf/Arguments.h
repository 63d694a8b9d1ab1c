// Command lines of sheaf's subcommands: options with values, flags and positional arguments.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/Status.h"

namespace sheaf::tool {

class Arguments {
 public:
  explicit Arguments(std::string command, std::string usage) : command_(std::move(command)), usage_(std::move(usage)) {}

  // An option that takes a value; it may be given more than once.
  void option(const std::string& name, std::function<Status(const std::string& value)> set);
  void option(const std::string& name, std::string& value);
  void option(const std::string& name, int64_t& value, int64_t least, int64_t most);
  // Bytes, at least one.
  void bytes(const std::string& name, std::function<void(uint64_t value)> set);
  // An option without a value.
  void flag(const std::string& name, bool& value);
  // The one positional argument.
  void positional(const std::string& what, std::string& value);

  // Reads `--name value` and `--name=value`; `help` is set by --help.
  Status parse(const std::vector<std::string>& arguments);
  bool help = false;

 private:
  std::string command_, usage_, what_;
  std::string* position_ = nullptr;
  std::map<std::string, std::function<Status(const std::string&)>> options_;
  std::map<std::string, bool*> flags_;
};

// The subcommands; each returns the process's exit status and has printed what was wrong.
int compile(const std::vector<std::string>& arguments);
int inspect(const std::vector<std::string>& arguments);
int assemble(const std::vector<std::string>& arguments);
int initialize(const std::vector<std::string>& arguments);
int verify(const std::vector<std::string>& arguments);
int simulate(const std::vector<std::string>& arguments);
int fit(const std::vector<std::string>& arguments);
int profile(const std::vector<std::string>& arguments);
int operators(const std::vector<std::string>& arguments);
int calls(const std::vector<std::string>& arguments);

// Whether an option's value is one of those that it takes.
Status oneOf(const std::string& option, const std::string& value, std::initializer_list<const char*> allowed);

// Prints "sheaf: error: message" and returns 1.
int fail(const std::string& message);
// Prints a subcommand's help and returns 0.
int help(const char* text);

}  // namespace sheaf::tool
