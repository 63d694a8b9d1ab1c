// A command's options: one table, from which its parser, its help, its man page, its page of the documentation and its
// completion in shells come.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/Status.h"

namespace sheaf::options {

using Arguments = std::vector<std::string>;

struct Given;

// One row: an option, and where its value goes. Rows.h makes them.
struct Option {
  std::string name;         // "--ranks"
  std::string syntax;       // what stands for its value in help, as in "N"; empty: a flag
  std::string takes;        // the values that it takes, as in "an integer from 1 to 65536"
  std::string range;        // the same where help is to say so, as in "1 to 65536"; empty: the syntax says it
  std::string fallback;     // the default, as help shows it; empty: there is none
  std::string help;         // a sentence or two
  std::string whenMissing;  // not empty: the option is required; the end of the error if it is missing
  bool repeats = false;     // may be given more than once
  // Reads a value into the table's target; a flag gets an empty text. Errors say what was expected, not where.
  std::function<Status(void* target, const std::string& text)> set;
  // Whether two texts stand for one value.
  std::function<bool(const std::string& a, const std::string& b)> same = std::equal_to<std::string>();
  bool bits = false;          // decides the bits of results
  bool settledLater = false;  // what it is where it is not given is not known before the model is
  // Set if the value is the path of a file to write: the endings of names that say what is written, which other options
  // may decide. None: any name will do.
  std::function<std::vector<std::string>(const Given& given)> endings = nullptr;
  std::string companionSuffix = {};  // the ending of another file that is written next to it, as in ".data"

  // Replaces the default that help shows: for a value that stands for a choice made later.
  Option&& defaultsTo(std::string text) && { return fallback = std::move(text), settledLater = true, std::move(*this); }
  Option&& decidesBits() && { return bits = true, std::move(*this); }
  Option&& required(std::string text) && { return whenMissing = std::move(text), std::move(*this); }
  Option&& alsoWrites(std::string ending) && { return companionSuffix = std::move(ending), std::move(*this); }
  Option&& writes(std::vector<std::string> names) && {
    return std::move(*this).writes([names = std::move(names)](const Given&) { return names; });
  }
  Option&& writes(std::function<std::vector<std::string>(const Given& given)> names) && {
    return endings = std::move(names), std::move(*this);
  }
};

struct Section {
  std::string title;
  std::vector<Option> options;
};

// The argument without a name, or a list of them.
struct Positional {
  std::string syntax;                                           // "MODEL.onnx"; empty: the command takes none
  std::function<std::string&(void* target)> text;               // where the one goes
  std::function<std::vector<std::string>&(void* target)> list;  // where all go
};

// The forms of help: --help prints the whole text, -h a short one, and --help=FORM the whole as Markdown, as a man
// page, or completion for a shell.
enum class HelpForm { kText, kShort, kMarkdown, kManual, kBash, kZsh };

// The form of `--help`, `-h` or `--help=FORM`; none if it is another argument. An error if there is no such form.
Expected<std::optional<HelpForm>> helpFormOf(const std::string& argument);

// What a command line gave.
struct Given {
  std::optional<HelpForm> help;                            // --help: nothing else was read
  bool version = false;                                    // --version: nothing else was read
  std::set<std::string> options;                           // names
  std::map<std::string, std::vector<std::string>> values;  // by name, in order; an empty text for a flag
  bool has(const std::string& name) const { return options.count(name) > 0; }
  bool is(const std::string& name, const std::string& value) const {
    auto found = values.find(name);
    return found != values.end() && found->second.back() == value;
  }
};

struct Table {
  std::string command;             // "sheaf compile"
  std::string summary;             // what it does: a sentence
  std::vector<std::string> usage;  // without the word `usage`
  Positional positional;
  std::vector<Section> sections;
  std::string notes;          // below the options; paragraphs are divided by empty lines
  bool versioned = false;     // is a whole program: takes --version
  bool marksResults = false;  // help marks the options that can change results
  // At least two command lines that work, in a folder with the files that they name.
  std::vector<std::string> examples = {};
  // Options of other programs, each with what the error says that it is not one of this command.
  std::map<std::string, std::string> foreign = {};
  // An option with which only some others may be given.
  std::map<std::string, std::vector<std::string>> modes = {};
  std::vector<Option> all() const;

  // Reads `--name value` and `--name=value` into the target, which has the type that the rows were made for. An error
  // names the option and what it takes; a misspelt name gets the nearest one. Refuses files to write that are files to
  // read, or whose names say another format.
  Expected<Given> parse(const Arguments& arguments, void* target) const;
  // Sets an option that did not come from the command line, as parse() does, and adds it to `given`.
  Status take(const std::string& name, const std::vector<std::string>& values, void* target, Given& given) const;

  std::string help() const;       // for a terminal of 100 columns
  std::string shortHelp() const;  // the same without what the options do
  std::string markdown() const;   // a section of a page
  // A man page in roff. `seeAlso`: names of other pages.
  std::string manual(const std::string& version, const std::vector<std::string>& seeAlso) const;
  // Sections with the rows that every table ends with, as help shows them.
  std::vector<Section> shown() const;
  // What help adds to an option's sentence: "1 to 65536; default: 1".
  std::string facts(const Option& option) const;

 private:
  Status checkOutputs(const Given& given, void* target) const;
};

// True if the syntax of a value, such as "OUT.plan", "NAME=FILE" or "PLAN", is that of a file.
bool takesFile(const std::string& syntax);

// "--ranks N"
std::string synopsis(const Option& option);

}  // namespace sheaf::options
