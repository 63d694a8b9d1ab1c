// The keys of a DeepSpeed configuration that set no option of `sheaf compile`: what becomes of each.
#pragma once

#include <string_view>
#include <vector>

#include "runtime/base/Json.h"
#include "tools/sheaf/DeepSpeedConfig.h"

namespace sheaf::tool {

struct DeepSpeedRule {
  std::string_view key;  // with a dot at its end: a section, and all keys in it
  DeepSpeedKey::Outcome outcome;
  std::string_view text;                  // why
  std::vector<json::Value> neutral = {};  // of a refused key: values that change nothing
};

// The first one that a key fits is its own.
const std::vector<DeepSpeedRule>& deepSpeedRules();

}  // namespace sheaf::tool
