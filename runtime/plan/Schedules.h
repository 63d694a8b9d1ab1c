// Schedules of the learning rate: what each takes, computes and is written as. One table has all of it.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/Status.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::plan {

// Reads "constant", "cosine:warmup=100,steps=1000,min=0.1". The length `steps` may be left out: see withLength.
Expected<Schedule> parseSchedule(const std::string& text);

// What parseSchedule reads back to the same schedule; settings at their defaults are left out.
std::string scheduleText(const Schedule& schedule);

// Whether all settings are in range and fit together; a length that is left out fits.
Status checkSchedule(const Schedule& schedule);

// Whether it needs a length and states none.
bool lacksLength(const Schedule& schedule);

// The schedule with `steps` as its length if it lacks one; an error if it does not fit that.
Expected<Schedule> withLength(Schedule schedule, int64_t steps);

// What the learning rate is multiplied by at the step with this 0-based number. The schedule must not lack its length.
double scheduleFactor(const Schedule& schedule, int64_t step);

// For the help of an option: "constant|cosine|...[:key=value,...]", and what it does.
std::string scheduleSyntax();
std::string scheduleHelp();

// The page of `sheaf schedules`: every kind with its keys, and what the keys mean.
std::string schedulePage();

}  // namespace sheaf::plan
