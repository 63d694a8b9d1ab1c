#include "tools/options/Completion.h"

#include <algorithm>
#include <cctype>

#include "runtime/base/Text.h"

namespace sheaf::options {
namespace {

// What an option's value or an argument can be completed by, as its syntax says: "auto|none|REGEX" by words,
// "NAME=FILE" and "OUT.plan" by files.
struct Values {
  std::vector<std::string> words;
  bool files = false, folders = false, named = false;  // named: files after NAME=
  std::string ending;                                  // of files, ".onnx"; empty: any
};

Values valuesOf(const std::string& syntax) {
  Values values;
  for (size_t at = 0; at <= syntax.size();) {
    const size_t end = std::min(syntax.find('|', at), syntax.size());
    // Of "A.plan B.plan" the first.
    const std::string word = syntax.substr(at, std::min(syntax.find(' ', at), end) - at);
    const size_t dot = word.find('.');
    if (word == "DIR") {
      values.folders = true;
    } else if (dot != std::string::npos && word.find('=') == std::string::npos && !word.ends_with("...")) {
      values.ending = values.files ? "" : word.substr(dot);
      values.files = true;
    } else if (word.find("FILE") != std::string::npos || word.starts_with("PLAN")) {
      values.files = true;
      values.named = word.find('=') != std::string::npos;
    } else if (!word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
                 return std::islower(c) || std::isdigit(c) || c == '-' || c == '_';
               })) {
      values.words.push_back(word);
    }
    at = end + 1;
  }
  return values;
}

}  // namespace

bool takesFile(const std::string& syntax) {
  return valuesOf(syntax).files;
}

namespace {

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

// "compile" of "sheaf compile"; empty for a program without commands.
std::string commandOf(const Table& table) {
  const size_t space = table.command.find(' ');
  return space == std::string::npos ? "" : table.command.substr(space + 1);
}

std::string identifier(std::string program) {
  std::replace(program.begin(), program.end(), '-', '_');
  return "_" + program;
}

// What a branch of bash's `case` does to offer these values.
std::string bashOffer(const Values& values) {
  std::string text;
  if (!values.words.empty()) text += cat("words='", joined(values.words), "' ");
  if (values.files) text += cat("files='*", values.ending, "' ");
  if (values.folders) text += "folders=1 ";
  return text + ";;";
}

// An action of zsh's _arguments.
std::string zshAction(const Values& values) {
  if (values.folders) return "_files -/";
  if (values.named) return "_sheaf_named_file";
  if (values.files) return values.ending.empty() ? "_files" : cat("_files -g \"*", values.ending, "(-.)\"");
  return values.words.empty() ? " " : cat("(", joined(values.words), ")");
}

// Text in a single-quoted specification of _arguments.
std::string zshText(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '\'')
      out += "'\\''";
    else if (c == '[' || c == ']' || c == ':' || c == '\\')
      out += cat("\\", std::string(1, c));
    else
      out += c;
  }
  return out;
}

// Of help, which is a sentence or two.
std::string firstSentence(const std::string& help) {
  const size_t end = help.find(". ");
  std::string text = help.substr(0, end);
  while (!text.empty() && text.back() == '.') text.pop_back();
  return text;
}

std::string zshArguments(const Table& table, const std::string& indent) {
  std::string out = "_arguments";
  for (const Section& part : table.shown())
    for (const Option& option : part.options) {
      const bool isLong = option.name.starts_with("--") && !option.syntax.empty();
      out += cat(" \\\n", indent, "'", option.repeats ? "*" : "", option.name, isLong ? "=" : "", "[",
                 zshText(firstSentence(option.help)), "]");
      if (!option.syntax.empty()) out += cat(":", zshText(option.syntax), ":", zshAction(valuesOf(option.syntax)));
      out += "'";
    }
  if (!table.positional.syntax.empty())
    out += cat(" \\\n", indent, "'*:", zshText(table.positional.syntax), ":",
               zshAction(valuesOf(table.positional.syntax)), "'");
  return out + "\n";
}

}  // namespace

std::string bashCompletion(const std::string& program, const std::vector<const Table*>& tables) {
  const std::string name = identifier(program);
  const bool hasCommands = !commandOf(*tables.front()).empty();
  std::string cases, options, positionals;
  std::vector<std::string> commands;
  for (const Table* table : tables) {
    const std::string command = commandOf(*table);
    if (hasCommands) commands.push_back(command);
    std::vector<std::string> names;
    for (const Section& part : table->shown())
      for (const Option& option : part.options) {
        names.push_back(option.name);
        if (!option.syntax.empty())
          cases += cat("    '", command, " ", option.name, "') ", bashOffer(valuesOf(option.syntax)), "\n");
      }
    options += cat("        '", command, "') words='", joined(names), "' ;;\n");
    if (!table->positional.syntax.empty())
      positionals += cat("        '", command, "') ", bashOffer(valuesOf(table->positional.syntax)), "\n");
  }
  std::string out = cat("# Completion of ", program, " for bash. Made by `", program, " --help=bash`.\n", name, R"(() {
  local current=${COMP_WORDS[COMP_CWORD]} at=$COMP_CWORD command='' words='' files='' folders=''
  # bash divides words at '=': of --name=value and NAME=FILE the option stands one to three words before.
  if [[ $current == '=' ]]; then
    current=''
    ((at++))
  fi
  local option=${COMP_WORDS[at - 1]}
  if [[ $option == '=' ]]; then
    option=${COMP_WORDS[at - 2]}
    [[ $option == -* ]] || option=${COMP_WORDS[at - 3]}
  fi
)");
  if (hasCommands)
    out +=
        cat("  if ((COMP_CWORD > 1)); then\n    command=${COMP_WORDS[1]}\n    [[ $command == help ]] && "
            "words='",
            joined(commands), "'\n  else\n    words='help ", joined(commands), " --help --version'\n  fi\n");
  out += cat("  case \"$command $option\" in\n", cases, "    *)\n      if [[ $current == -* ]]; then\n",
             "        case $command in\n", options, "        esac\n      else\n        case $command in\n", positionals,
             "        esac\n      fi\n      ;;\n  esac\n");
  return out + cat(R"(  COMPREPLY=()
  [[ $words ]] && mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
  if [[ $files || $folders ]]; then
    compopt -o filenames 2>/dev/null
    [[ $files ]] && mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -X "!$files" -- "$current")
    mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -d -- "$current")
  fi
}
complete -F )",
                   name, " ", program, "\n");
}

std::string zshCompletion(const std::string& program, const std::vector<const Table*>& tables) {
  const std::string name = "_" + program;  // that of the file, from which zsh loads the function
  std::string out = cat("#compdef ", program, "\n# Completion of ", program, " for zsh. Made by `", program,
                        " --help=zsh`.\n", "_sheaf_named_file() {\n  compset -P '*='\n  _files\n}\n", name, "() {\n");
  if (commandOf(*tables.front()).empty()) {
    out += "  " + zshArguments(*tables.front(), "    ");
  } else {
    out += "  local -a commands=(\n    'help:prints the options of a command'\n";
    std::string cases;
    for (const Table* table : tables) {
      const std::string command = commandOf(*table);
      out += cat("    '", command, ":", zshText(firstSentence(table->summary)), "'\n");
      cases += cat("    ", command, ") ", zshArguments(*table, "      "), "      ;;\n");
    }
    out +=
        cat("  )\n  if ((CURRENT == 2)); then\n    _describe -t commands 'command of ", program,
            "' commands\n    return\n  fi\n  shift words\n  ((CURRENT--))\n  case $words[1] in\n    help) _describe -t "
            "commands command commands ;;\n",
            cases, "  esac\n");
  }
  // Sourced, the script registers its function; found by compinit in a folder of fpath, it is the function's body.
  return out + cat("}\nif [[ $funcstack[1] == ", name, " ]]; then\n  ", name, " \"$@\"\nelse\n  compdef ", name, " ",
                   program, "\nfi\n");
}

}  // namespace sheaf::options
