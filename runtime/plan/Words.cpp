#include "runtime/plan/Words.h"

#include <algorithm>
#include <cctype>
#include <vector>

namespace sheaf::plan {
namespace {

std::string lower(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name;
}

// The values of an enumeration are consecutive from 0.
template <typename Enum>
std::vector<std::string> makeTable(bool (*isValid)(int), const std::string& (*name)(Enum)) {
  std::vector<std::string> table;
  for (int value = 0; isValid(value); ++value) table.push_back(lower(name(static_cast<Enum>(value))));
  if (table[0].ends_with("unspecified")) table[0].clear();
  return table;
}

}  // namespace

#define SHEAF_WORDS(ENUM)                                                                       \
  template <>                                                                                   \
  std::span<const std::string> wordTable<ENUM>() {                                              \
    static const std::vector<std::string> table = makeTable<ENUM>(ENUM##_IsValid, ENUM##_Name); \
    return table;                                                                               \
  }

SHEAF_WORDS(ElementType)
SHEAF_WORDS(BufferKind)
SHEAF_WORDS(CollectiveOp)
SHEAF_WORDS(Collective_Phase)
SHEAF_WORDS(OutputKind)
SHEAF_WORDS(StepScalar_Kind)
SHEAF_WORDS(Training_OnNan)
SHEAF_WORDS(Training_ReduceOrder)
SHEAF_WORDS(Dealing)
SHEAF_WORDS(Axis)
SHEAF_WORDS(Buffer_Space)
SHEAF_WORDS(Transfer_Kind)

}  // namespace sheaf::plan
