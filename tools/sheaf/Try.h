// `sheaf check --try`: whether a step computes the same however the batch is divided.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/Json.h"
#include "runtime/io/DataSource.h"
#include "tools/options/Table.h"
#include "tools/sheaf/Trained.h"

namespace sheaf::tool {

struct TrialOptions {
  std::string model;
  frontend::ImportOptions import;      // ranks of at least 2, batch: divides among them
  std::vector<io::DataArgument> data;  // empty: random
  options::Arguments others;           // options of `sheaf compile`, such as --loss
};

// One step of one division of the batch.
struct TrialStep {
  std::string name;           // "4 ranks"
  double loss = 0, norm = 0;  // the norm is that of all gradients
};

// One step on the CPU, in f32, by one rank, by one rank with leaves, and by several ranks.
struct Trial {
  std::vector<TrialStep> steps;
  int64_t gradients = 0;
  std::vector<std::string> zero;  // parameters whose gradients have no element but zero
  // The first gradient that differs, in words; empty: none does. Those of the last two steps must be equal byte for
  // byte; those of the first two may differ by 1e-3 of that gradient's norm plus 1e-6 of the norm of all.
  std::string divisions, rows;
  // The largest difference of the first two, as a part of what is allowed.
  double largest = 0;
  bool comparesRows = true;  // false: normalization by each rank's own rows differs by definition
  bool same() const { return divisions.empty() && rows.empty(); }
};

// An error says what a trial needs.
Expected<Trial> tryDivisions(const TrialOptions& options);

json::Value trialJson(const Trial& trial);
void printTrial(const Trial& trial);

}  // namespace sheaf::tool
