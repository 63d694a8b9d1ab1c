// Lines of at most 100 columns, the width that help and reports keep to.
#pragma once

#include <cstddef>
#include <string>

namespace sheaf::options {

// Appends `text` and a line break to `out`, whose last line has `column` columns. Lines are broken at spaces; those
// after the first begin with `indent` spaces.
void wrap(std::string& out, const std::string& text, size_t column, size_t indent);

}  // namespace sheaf::options
