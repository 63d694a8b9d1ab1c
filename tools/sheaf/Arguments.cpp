#include "tools/sheaf/Arguments.h"

#include <cstdio>

#include "runtime/base/Text.h"

namespace sheaf::tool {

void Arguments::option(const std::string& name, std::function<Status(const std::string&)> set) {
  options_[name] = std::move(set);
}

void Arguments::option(const std::string& name, std::string& value) {
  options_[name] = [&value, name](const std::string& text) {
    value = text;
    return text.empty() ? Status::error(cat(name, ": expected a value, got nothing")) : Status();
  };
}

void Arguments::option(const std::string& name, int64_t& value, int64_t least, int64_t most) {
  options_[name] = [&value, name, least, most](const std::string& text) {
    if (parseInteger(text, value) && value >= least && value <= most) return Status();
    return Status::error(cat(name, " ", text, ": expected an integer from ", least, " to ", most));
  };
}

void Arguments::bytes(const std::string& name, std::function<void(uint64_t)> set) {
  options_[name] = [name, set = std::move(set)](const std::string& text) {
    uint64_t value = 0;
    if (!parseBytes(text, value) || value == 0)
      return Status::error(cat(name, " ", text, ": expected bytes, such as 24GiB or 80GB"));
    set(value);
    return Status();
  };
}

void Arguments::flag(const std::string& name, bool& value) {
  flags_[name] = &value;
}

void Arguments::positional(const std::string& what, std::string& value) {
  what_ = what;
  position_ = &value;
}

Status Arguments::parse(const std::vector<std::string>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    std::string name = arguments[i];
    if (name == "--help" || name == "-h") {
      help = true;
      return {};
    }
    if (name.empty() || name[0] != '-' || name == "-") {
      if (!position_) return Status::error(cat("sheaf ", command_, " takes no argument '", name, "'"));
      if (!position_->empty())
        return Status::error(cat("one ", what_, " at a time: '", *position_, "' and '", name, "'"));
      *position_ = name;
      continue;
    }
    if (auto flag = flags_.find(name); flag != flags_.end()) {
      *flag->second = true;
      continue;
    }
    size_t equals = name.find('=');
    bool attached = equals != std::string::npos;
    std::string value = attached ? name.substr(equals + 1) : "";
    if (attached) name.resize(equals);
    auto option = options_.find(name);
    if (option == options_.end()) {
      std::vector<std::string> names{"--help"};
      for (const auto& entry : options_) names.push_back(entry.first);
      for (const auto& entry : flags_) names.push_back(entry.first);
      std::string near = nearest(name, names);
      return Status::error(
          cat("unknown option ", name,
              near.empty() ? cat("; see sheaf ", command_, " --help") : cat("; did you mean ", near, "?")));
    }
    if (!attached) {
      if (++i == arguments.size()) return Status::error(cat(name, " needs a value"));
      value = arguments[i];
    }
    SHEAF_RETURN_IF_ERROR(option->second(value));
  }
  if (position_ && position_->empty()) return Status::error(cat("no ", what_, " is given; usage: sheaf ", usage_));
  return {};
}

int fail(const std::string& message) {
  std::fprintf(stderr, "sheaf: error: %s\n", message.c_str());
  return 1;
}

int help(const char* text) {
  std::fputs(text, stdout);
  return 0;
}

Status oneOf(const std::string& option, const std::string& value, std::initializer_list<const char*> allowed) {
  std::vector<std::string> names(allowed.begin(), allowed.end());
  for (const std::string& name : names)
    if (value == name) return {};
  return Status::error(cat(option, " ", value, ": expected one of ", listText(names)));
}

}  // namespace sheaf::tool
