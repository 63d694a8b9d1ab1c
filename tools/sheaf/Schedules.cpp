// sheaf schedules: the learning rate schedules, with their keys.
#include "runtime/plan/Schedules.h"
#include "tools/sheaf/Command.h"

namespace sheaf::tool {
namespace {

struct SchedulesOptions {};

int schedules(SchedulesOptions&, const options::Given&) {
  return print(plan::schedulePage());
}

}  // namespace

Command schedulesCommand() {
  return command(options::Table{"sheaf schedules",
                                "Prints the learning rate schedules of --lr-schedule, with their keys.",
                                {"sheaf schedules"},
                                {},
                                {},
                                ""},
                 schedules);
}

}  // namespace sheaf::tool
