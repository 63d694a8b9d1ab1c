// What a configuration of DeepSpeed's says, as options of `sheaf compile`.
//
// Keys, defaults and meanings are those of DeepSpeed 0.19: www.deepspeed.ai/docs/config-json, and where it says less
// deepspeed/runtime (config.py, zero/config.py, precision_config.py, lr_schedules.py).
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/Json.h"
#include "runtime/base/Status.h"

namespace sheaf::tool {

// What becomes of a key.
struct DeepSpeedKey {
  enum Outcome {
    kApplied,     // by the options that the text names
    kEquivalent,  // Sheaf has something of the kind, which the text names; it is not set
    kNoEffect,    // on results here
    kRefused,     // it changes results, and nothing here does the same
    kIgnored,     // would be refused, but for --ignore
  };
  std::string key;  // "zero_optimization.stage"
  Outcome outcome;
  std::string text;  // why, or as what
};

struct DeepSpeedOptions {
  std::vector<DeepSpeedKey> keys;  // of the file, in its order; then defaults that are applied or refused
  std::vector<std::pair<std::string, std::string>> options;  // of `sheaf compile`: name and value
};

struct DeepSpeedContext {
  int64_t ranks = 1;
  // Options on the command line, each with its values: they win.
  std::map<std::string, std::vector<std::string>> given;
  std::set<std::string> ignored;  // keys of --ignore; one of a section stands for all keys in it
};

// An error says why the file is not a configuration: the type of a value, batch sizes that contradict each other, a key
// of
// --ignore that would not have been refused.
Expected<DeepSpeedOptions> translateDeepSpeed(const json::Value& config, const DeepSpeedContext& context);

}  // namespace sheaf::tool
