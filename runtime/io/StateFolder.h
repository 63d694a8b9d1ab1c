// Tells files of saved states (Checkpoint.h) from others in their folder: nothing else is removed from it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/Status.h"

namespace sheaf::io {

// The folder of a state that is being written, before its random name; and of one that is being removed, before the
// state's name.
inline constexpr const char* kSavingFolder = ".saving-";
inline constexpr const char* kRemovedFolder = ".removed-";
// Follows the name of the former when it holds the state that was replaced.
inline constexpr const char* kReplacedEnding = ".old";
inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr const char* kLatestFile = "latest";

// Returns true if a state has a file of this name.
bool isStateFile(std::string_view name);
// Returns the step of a folder that has a state's name and is not a link.
std::optional<int64_t> stateIn(const std::filesystem::directory_entry& entry);
// True for a folder of a state, or a file `latest`, that is being written, or was when its run was killed.
bool isUnfinished(const std::filesystem::directory_entry& entry);
// True for a state that is being removed, or was when its run was killed.
bool isRemoved(const std::filesystem::directory_entry& entry);

// True if a folder holds any file of a state.
bool holdsState(const std::filesystem::path& folder);
// Removes a state, finished or not, or a temporary file `latest`: of a folder the files that states have, and the
// folder if nothing else is in it. Returns whether it has gone.
Expected<bool> removeUnfinished(const std::filesystem::path& path);
// Moves what is not the state's own from one state's folder to another that has no such name.
void moveOthers(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace sheaf::io
