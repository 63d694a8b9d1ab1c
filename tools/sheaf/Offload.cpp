#include "tools/sheaf/Offload.h"

#include <algorithm>
#include <map>
#include <set>

namespace sheaf::tool {

Expected<OffloadChoice> parseOffload(const std::string& text) {
  OffloadChoice choice;
  OffloadSpaces& spaces = choice.spaces;
  choice.automatic = text == "auto";
  if (text == "none" || choice.automatic) return choice;
  const std::map<std::string, std::string OffloadSpaces::*> kinds{{"optimizer", &OffloadSpaces::optimizer},
                                                                  {"parameters", &OffloadSpaces::parameters},
                                                                  {"gradients", &OffloadSpaces::gradients},
                                                                  {"activations", &OffloadSpaces::activations}};
  std::set<std::string> given;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string one = text.substr(begin, end - begin);
    const size_t equals = one.find('=');
    const auto kind = kinds.find(one.substr(0, equals));
    const std::string space = equals == std::string::npos ? "" : one.substr(equals + 1);
    if (kind == kinds.end() || (space != "host" && space != "file") || !given.insert(kind->first).second)
      return Status::error(
          "expected auto, none, or KIND=SPACE,... with each KIND of optimizer, parameters, gradients and activations "
          "at most "
          "once and SPACE host or file, as in optimizer=host,activations=file");
    spaces.*kind->second = space;
    begin = end + 1;
  }
  return choice;
}

}  // namespace sheaf::tool
