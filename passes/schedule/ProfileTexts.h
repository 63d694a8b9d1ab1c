// The files of passes/schedule/profiles as strings of the program.
#pragma once

#include <span>

namespace sheaf::schedule {

struct ProfileText {
  const char* name;
  const char* text;  // JSON
};
std::span<const ProfileText> profileTexts();

}  // namespace sheaf::schedule
