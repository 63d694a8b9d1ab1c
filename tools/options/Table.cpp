#include "tools/options/Table.h"

#include <algorithm>
#include <filesystem>

#include "runtime/base/OutputPaths.h"
#include "runtime/base/Text.h"
#include "tools/options/Wrap.h"

namespace sheaf::options {
namespace {

constexpr size_t kColumn = 26;  // where an option's help begins
constexpr size_t kIndent = 2;   // of an option's name

const Option* find(const std::vector<Option>& options, const std::string& name) {
  auto found = std::find_if(options.begin(), options.end(), [&](const Option& o) { return o.name == name; });
  return found == options.end() ? nullptr : &*found;
}

void addOption(std::string& out, const Table& table, const Option& option) {
  std::string name = std::string(kIndent, ' ') + synopsis(option);
  out += name;
  if (name.size() + 2 > kColumn) {
    out += '\n';
    name.clear();
  }
  out += std::string(kColumn - name.size(), ' ');
  const std::string more = table.facts(option);
  wrap(out, more.empty() ? option.help : cat(option.help, " (", more, ")"), kColumn, kColumn);
}

// Text of a cell in a table of Markdown.
std::string cell(const std::string& text) {
  std::string escaped;
  for (char c : text) escaped += c == '|' ? std::string("\\|") : std::string(1, c);
  return escaped;
}

// The rows that every table ends with.
std::vector<Option> common(const Table& table) {
  std::vector<Option> rows(1);
  rows[0].name = "--help";
  rows[0].help =
      "Print this text. -h prints a short one. --help=markdown and --help=man print this text as Markdown or as a man "
      "page.";
  if (table.versioned) rows[0].help += " --help=bash and --help=zsh print completion for these shells.";
  if (table.versioned) {
    rows.emplace_back();
    rows[1].name = "--version";
    rows[1].help = "Print the version.";
  }
  return rows;
}

// The lines of usage and the examples.
std::string heading(const Table& table) {
  std::string out;
  wrap(out, table.summary, 0, 0);
  out += '\n';
  for (size_t i = 0; i < table.usage.size(); ++i) out += cat(i ? "       " : "usage: ", table.usage[i], "\n");
  if (!table.examples.empty()) out += "\nExamples\n";
  for (const std::string& example : table.examples) {
    out += "  ";
    wrap(out, example, 2, 6);
  }
  return out;
}

// The path in a value such as FILE, NAME=FILE or NAME=FILE:u16.
std::string pathIn(const std::string& value, const std::string& syntax) {
  if (syntax.find('=') == std::string::npos) return value;
  std::string path = value.substr(value.find('=') + 1);
  std::error_code error;
  if (const size_t colon = path.rfind(':'); colon != std::string::npos && !std::filesystem::exists(path, error))
    path.resize(colon);
  return path;
}

}  // namespace

std::string synopsis(const Option& option) {
  return option.syntax.empty() ? option.name : cat(option.name, " ", option.syntax);
}

std::string Table::facts(const Option& option) const {
  std::string text = option.range;
  auto add = [&](const std::string& fact) { text += (text.empty() ? "" : "; ") + fact; };
  if (!option.whenMissing.empty()) add("required");
  if (!option.fallback.empty()) add("default: " + option.fallback);
  if (option.repeats) add("may be given several times");
  if (marksResults && option.bits) add("can change results");
  if (auto mode = modes.find(option.name); mode != modes.end())
    add("can be combined only with " + listText(mode->second, mode->second.size()));
  return text;
}

std::vector<Section> Table::shown() const {
  std::vector<Section> parts = sections;
  parts.push_back({sections.empty() ? "Options" : "Help", common(*this)});
  return parts;
}

Expected<std::optional<HelpForm>> helpFormOf(const std::string& argument) {
  const std::string prefix = "--help=";
  if (argument == "--help") return std::optional(HelpForm::kText);
  if (argument == "-h") return std::optional(HelpForm::kShort);
  if (!argument.starts_with(prefix)) return std::optional<HelpForm>();
  const std::pair<const char*, HelpForm> forms[] = {{"markdown", HelpForm::kMarkdown},
                                                    {"man", HelpForm::kManual},
                                                    {"bash", HelpForm::kBash},
                                                    {"zsh", HelpForm::kZsh}};
  for (const auto& [name, form] : forms)
    if (argument == prefix + name) return std::optional(form);
  return Status::error(cat(argument, ": expected --help, or --help= with one of markdown, man, bash, zsh"));
}

std::vector<Option> Table::all() const {
  std::vector<Option> rows;
  for (const Section& section : sections) rows.insert(rows.end(), section.options.begin(), section.options.end());
  return rows;
}

Expected<Given> Table::parse(const Arguments& arguments, void* target) const {
  const std::vector<Option> rows = all();
  Given given;
  auto known = [&](const std::string& name) { return find(rows, name) || find(common(*this), name); };
  bool pathsOnly = false;  // after "--"
  for (size_t i = 0; i < arguments.size(); ++i) {
    std::string name = arguments[i];
    if (!pathsOnly && name == "--") {
      pathsOnly = true;
      continue;
    }
    Expected<std::optional<HelpForm>> help = pathsOnly ? std::optional<HelpForm>() : helpFormOf(name);
    if (!help.ok()) return help.status();
    if (*help) {
      // Completion is that of a whole program.
      if (!versioned && (**help == HelpForm::kBash || **help == HelpForm::kZsh))
        return Status::error(cat(name, " is an option of ", command.substr(0, command.find(' ')), " itself"));
      given.help = *help;
      return given;
    }
    if (versioned && name == "--version" && !pathsOnly) {
      given.version = true;
      return given;
    }
    if (pathsOnly || name.size() < 2 || name[0] != '-') {
      if (positional.syntax.empty()) return Status::error(cat(command, " takes no argument '", name, "'"));
      if (positional.list) {
        positional.list(target).push_back(name);
        continue;
      }
      std::string& text = positional.text(target);
      if (!text.empty())
        return Status::error(cat("one ", positional.syntax, " at a time: '", text, "' and '", name, "'"));
      text = name;
      continue;
    }
    const size_t equals = name.find('=');
    const bool attached = equals != std::string::npos;
    std::string value = attached ? name.substr(equals + 1) : "";
    if (attached) name.resize(equals);
    const Option* option = find(rows, name);
    if (!option) {
      if (auto elsewhere = foreign.find(name); elsewhere != foreign.end())
        return Status::error(cat(name, " is not an option of ", command, ": ", elsewhere->second));
      std::vector<std::string> names;
      for (const Option& row : rows) names.push_back(row.name);
      for (const Option& row : common(*this)) names.push_back(row.name);
      const std::string near = nearest(name, names);
      return Status::error(cat("unknown option ", name,
                               near.empty() ? cat("; see ", command, " --help") : cat("; did you mean ", near, "?")));
    }
    if (!given.options.insert(name).second && !option->repeats)
      return Status::error(option->syntax.empty() ? cat(name, " is given twice")
                                                  : cat(name, " is given twice; it takes one value, ", option->takes));
    if (option->syntax.empty()) {
      if (attached) return Status::error(cat(name, " takes no value"));
    } else if (!attached) {
      if (++i == arguments.size() || known(arguments[i]))
        return Status::error(cat(name, " needs a value: ", option->takes));
      value = arguments[i];
    }
    if (Status status = option->set(target, value); !status.ok())
      return Status::error(cat(name, value.empty() ? "" : cat(" ", value), ": ", status.message()));
    given.values[name].push_back(value);
  }
  if (!positional.syntax.empty() &&
      (positional.list ? positional.list(target).empty() : positional.text(target).empty()))
    return Status::error(cat("no ", positional.syntax, " is given; usage: ", usage.front()));
  for (const Option& row : rows)
    if (!row.whenMissing.empty() && !given.has(row.name))
      return Status::error(cat(synopsis(row), " is missing: ", row.whenMissing));
  for (const auto& [mode, allowed] : modes) {
    if (!given.has(mode)) continue;
    for (const std::string& name : given.options)
      if (name != mode && std::find(allowed.begin(), allowed.end(), name) == allowed.end())
        return Status::error(
            cat(name, " cannot be combined with ", mode, "; these can: ", listText(allowed, allowed.size())));
  }
  SHEAF_RETURN_IF_ERROR(checkOutputs(given, target));
  return given;
}

Status Table::checkOutputs(const Given& given, void* target) const {
  std::vector<NamedFile> outputs, inputs;
  if (takesFile(positional.syntax)) {
    const std::vector<std::string> paths =
        positional.list ? positional.list(target) : std::vector{positional.text(target)};
    for (const std::string& path : paths) inputs.push_back({positional.syntax, path});
  }
  for (const Option& row : all()) {
    auto values = given.values.find(row.name);
    if (values == given.values.end()) continue;
    for (const std::string& value : values->second) {
      if (row.endings && value != "-") {
        outputs.push_back({row.name, value});
        std::error_code error;
        (void)std::filesystem::status(value, error);
        if (error == std::errc::filename_too_long)
          return Status::error(cat(row.name, ": File name too long: the path has ", value.size(),
                                   " bytes; at most 4095 are possible, and 255 for the name of a file or folder"));
        SHEAF_RETURN_IF_ERROR(checkOutputEnding(outputs.back(), row.endings(given)));
        if (!row.companionSuffix.empty())
          outputs.push_back({cat("the data of ", row.name, " ", value, ","), value + row.companionSuffix});
      } else if (!row.endings && takesFile(row.syntax)) {
        inputs.push_back({row.name, pathIn(value, row.syntax)});
      }
    }
  }
  return checkOutputPaths(outputs, inputs);
}

Status Table::take(const std::string& name, const std::vector<std::string>& values, void* target, Given& given) const {
  const std::vector<Option> rows = all();
  const Option* option = find(rows, name);
  if (!option) return Status::error(cat("unknown option ", name));
  for (const std::string& value : values)
    if (Status status = option->set(target, value); !status.ok())
      return Status::error(cat(name, value.empty() ? "" : cat(" ", value), ": ", status.message()));
  given.options.insert(name);
  given.values[name] = values;
  return {};
}

std::string Table::shortHelp() const {
  std::string out = heading(*this) + "\n";
  for (const Section& part : shown()) {
    std::vector<std::string> names;
    for (const Option& option : part.options) names.push_back(option.name);
    const std::string title = cat(part.title.substr(0, part.title.find(';')), ": ");
    out += title;
    wrap(out, listText(names, names.size()), title.size(), 2);
  }
  return cat(out, "\n`", command, " --help` says what they do.\n");
}

std::string Table::help() const {
  std::string out = heading(*this);
  for (const Section& part : shown()) {
    out += cat("\n", part.title, "\n");
    for (const Option& option : part.options) addOption(out, *this, option);
  }
  for (size_t at = 0; at < notes.size();) {
    const size_t end = std::min(notes.find("\n\n", at), notes.size());
    out += '\n';
    wrap(out, notes.substr(at, end - at), 0, 0);
    at = end + 2;
  }
  return out;
}

std::string Table::markdown() const {
  std::string out = cat("## ", command, "\n\n", summary, "\n\n```\n");
  for (const std::string& line : usage) out += line + "\n";
  out += "```\n";
  if (!examples.empty()) out += "\nExamples:\n\n```\n";
  for (const std::string& example : examples) out += example + "\n";
  if (!examples.empty()) out += "```\n";
  for (const Section& part : shown()) {
    out += cat("\n**", part.title, "**\n\n| option | meaning | values |\n|---|---|---|\n");
    for (const Option& option : part.options)
      out += cat("| `", cell(synopsis(option)), "` | ", cell(option.help), " | ", cell(facts(option)), " |\n");
  }
  return notes.empty() ? out : cat(out, "\n", notes, "\n");
}

}  // namespace sheaf::options
