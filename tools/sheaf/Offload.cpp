#include "tools/sheaf/Offload.h"

#include <algorithm>
#include <iterator>
#include <set>

namespace sheaf::tool {

Expected<OffloadChoice> parseOffload(const std::string& text) {
  OffloadChoice choice;
  OffloadSpaces& spaces = choice.spaces;
  choice.automatic = text == "auto";
  if (text == "none" || choice.automatic) return choice;
  std::set<std::string_view> given;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string one = text.substr(begin, end - begin);
    const size_t equals = one.find('=');
    const auto* kind = std::find_if(std::begin(kOffloadKinds), std::end(kOffloadKinds),
                                    [&](const OffloadKind& known) { return known.name == one.substr(0, equals); });
    const std::string space = equals == std::string::npos ? "" : one.substr(equals + 1);
    if (kind == std::end(kOffloadKinds) || (space != "host" && space != "file") || !given.insert(kind->name).second)
      return Status::error(
          "expected auto, none, or KIND=SPACE,... with each KIND of optimizer, parameters, gradients and activations "
          "at most once and SPACE host or file, as in optimizer=host,activations=file");
    spaces.*kind->space = space;
    begin = end + 1;
  }
  return choice;
}

}  // namespace sheaf::tool
