// Detects changes of a plan since it was compiled. Each table carries a digest of every entry, written when the
// plan is made: a plan that was edited, damaged or made from the wrong parts is refused, and the error names table and
// entry. Digests detect accidents, not attackers: anyone who changes a plan can restate them.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/plan/DigestTable.h"

namespace sheaf::plan {

// Writes the digests of all tables but `dataflow`, which is taken before a plan is scheduled.
void digestTables(Plan& plan);
// Computes all digests again, after an intended edit. If any is another one, the plan is no longer what was compiled,
// and its origin is dropped. The plan must have passed verifyPlan().
void redigest(Plan& plan);

// Whether the digests that the plan carries are those of its tables. Any plan may be given, also one that verifyPlan()
// has not seen. The error names table and entry, and what to do if the change is intended.
Status checkTables(const Plan& plan);
// The same for the table `dataflow`.
Status checkDataflow(const Plan& plan, const std::vector<uint64_t>& digests);

// Whether no table lacks its digests. The error names all that do.
Status requireDigests(const Plan& plan);

}  // namespace sheaf::plan
