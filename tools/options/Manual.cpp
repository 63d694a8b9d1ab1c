#include "tools/options/Manual.h"

#include <algorithm>
#include <cctype>

#include "runtime/base/Text.h"
#include "tools/options/Table.h"

namespace sheaf::options {
namespace {

std::string inCapitals(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

}  // namespace

std::string roff(const std::string& text) {
  std::string out;
  bool bold = false;
  for (char c : text) {
    const bool begins = out.empty() || out.back() == '\n';
    if (c == '`') {
      out += bold ? "\\fR" : "\\fB";
      bold = !bold;
    } else if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else if (begins && (c == '.' || c == '\'')) {
      out += cat("\\&", std::string(1, c));
    } else {
      out += c;
    }
  }
  return out;
}

std::string manualHead(const std::string& name, const std::string& version, const std::string& summary,
                       const std::vector<std::string>& usage) {
  std::string brief = summary.substr(0, summary.find_first_of(".:,"));
  if (!brief.empty()) brief[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(brief[0])));
  std::string out = cat(".TH ", inCapitals(roff(name)), " 1 \"\" \"Sheaf ", version, "\"\n.SH NAME\n", roff(name),
                        " \\- ", roff(brief), "\n.SH SYNOPSIS\n.nf\n");
  for (const std::string& line : usage) out += roff(line) + "\n";
  return out + cat(".fi\n.SH DESCRIPTION\n", roff(summary), "\n");
}

std::string manualSeeAlso(const std::vector<std::string>& pages) {
  std::string out = ".SH SEE ALSO\n";
  for (const std::string& page : pages) out += cat(".BR ", roff(page), " (1)", &page == &pages.back() ? "" : ",", "\n");
  return out;
}

std::string Table::manual(const std::string& version, const std::vector<std::string>& seeAlso) const {
  std::string name = command;
  std::replace(name.begin(), name.end(), ' ', '-');
  std::string out = manualHead(name, version, summary, usage);
  if (!examples.empty()) out += ".SH EXAMPLES\n.nf\n";
  for (const std::string& example : examples) out += roff(example) + "\n";
  out += examples.empty() ? ".SH OPTIONS\n" : ".fi\n.SH OPTIONS\n";
  for (const Section& part : shown()) {
    out += cat(".SS ", roff(part.title), "\n");
    for (const Option& option : part.options) {
      out += cat(".TP\n\\fB", roff(option.name), "\\fR");
      if (!option.syntax.empty()) out += cat(" \\fI", roff(option.syntax), "\\fR");
      const std::string more = facts(option);
      out += cat("\n", roff(option.help), more.empty() ? "" : cat(" (", roff(more), ")"), "\n");
    }
  }
  if (!notes.empty()) out += ".SH NOTES\n";
  for (size_t at = 0; at < notes.size();) {
    const size_t end = std::min(notes.find("\n\n", at), notes.size());
    out += cat(at ? ".PP\n" : "", roff(notes.substr(at, end - at)), "\n");
    at = end + 2;
  }
  return out + manualSeeAlso(seeAlso);
}

}  // namespace sheaf::options
