// Tells files of saved states (Checkpoint.h) from others in their folder: nothing else is removed from it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/Status.h"

namespace sheaf::io {

// Prefixes of the folder of a state that is being written, before six random letters, and of one that is being removed,
// before the state's name.
inline constexpr const char* kSavingPrefix = ".saving-";
inline constexpr const char* kRemovedPrefix = ".removed-";
// Suffix of a replaced state's folder, on file systems without an atomic exchange.
inline constexpr const char* kReplacedSuffix = ".old";
inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr const char* kLatestFile = "latest";

// Returns true if a state has a file of this name.
bool isStateFileName(std::string_view name);
// Returns the step of a folder that has a state's name and is not a link.
std::optional<int64_t> stepOfState(const std::filesystem::directory_entry& entry);
// True for a folder of a state, or a file `latest`, that is being written, or was when its run was killed.
bool isUnfinished(const std::filesystem::directory_entry& entry);
// True for a state that is being removed, or was when its run was killed.
bool isBeingRemoved(const std::filesystem::directory_entry& entry);

// True if a folder holds any file of a state.
bool holdsState(const std::filesystem::path& folder);
// Removes a state, finished or not, or a temporary file `latest`: the state's files, and the folder if it is then
// empty. Returns true if the path is gone.
Expected<bool> removeStateFiles(const std::filesystem::path& path);
// Moves files that are not the state's own from one state's folder to another that has none of that name. Errors are
// ignored: files stay where they are.
void moveForeignFiles(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace sheaf::io
