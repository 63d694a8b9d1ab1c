// Makes every file and folder that the tools write (docs/files.md lists them). A new file gets its mode from the
// process's umask, which the kernel applies: no code reads or sets the umask, which all threads share.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/Status.h"

namespace sheaf {

// Before the umask: files and folders for anyone whom the umask admits, and for this user alone.
inline constexpr mode_t kFileMode = 0666, kFolderMode = 0777, kPrivateFileMode = 0600, kPrivateFolderMode = 0700;

// Returns six random letters and digits.
Expected<std::string> randomName();
// True if a text is of that kind.
bool isRandomName(std::string_view text);

// The name under which a file is written until it is whole: "DIR/.NAME-RANDOM" for "DIR/NAME".
std::string temporaryPath(const std::string& path, const std::string& random);
// True if `name` is a temporary name of a file called `of`.
bool isTemporaryName(std::string_view name, std::string_view of);

// Opens a new file to read and write. Never one that exists, nor one that a link names. -1 with errno if it cannot.
int openNew(const std::string& path, mode_t mode = kFileMode);
// Opens a file to write that another process of the run has made by openNew().
int openMade(const std::string& path);
// Opens a file to append lines to, and removes what it has unless `keeps`. Unlike all others it is written in place, so
// that it can be read while it grows, and may be a pipe or a terminal.
int openLog(const std::string& path, bool keeps);

struct TemporaryFile {
  std::string path;
  int descriptor = -1;
};
// A new file with a temporary name of `path`.
Expected<TemporaryFile> makeTemporaryFile(const std::string& path, mode_t mode = kFileMode);
// A new folder called `prefix` and a random name.
Expected<std::string> makeTemporaryFolder(const std::string& prefix, mode_t mode = kFolderMode);
// Makes a folder and those above it, as far as they lack, and makes their names durable. Returns those made, the
// outermost first.
Expected<std::vector<std::string>> makeFolders(const std::string& folder);

// Makes the names in a folder durable.
Status syncFolder(const std::string& folder);

// The folder part of a path, "." if there is none.
std::string folderOf(const std::string& path);

// Owns a folder for this user alone, and removes it with everything in it on destruction.
class ScratchFolder {
 public:
  static Expected<ScratchFolder> make(const std::string& prefix);
  ScratchFolder(ScratchFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  ScratchFolder& operator=(ScratchFolder&&) = delete;
  ~ScratchFolder();
  const std::string& path() const { return path_; }

 private:
  explicit ScratchFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace sheaf
