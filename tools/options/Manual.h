// Man pages in roff, as man(7) describes it.
#pragma once

#include <string>
#include <vector>

namespace sheaf::options {

// Escapes text; what stands between backticks becomes bold.
std::string roff(const std::string& text);

// The beginning of a page up to the synopsis. `summary`: a sentence.
std::string manualHead(const std::string& name, const std::string& version, const std::string& summary,
                       const std::vector<std::string>& usage);

// The list of other pages at the end.
std::string manualSeeAlso(const std::vector<std::string>& pages);

}  // namespace sheaf::options
