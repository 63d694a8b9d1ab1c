// Creates the files and folders that the tools write (docs/files.md lists them, test/structure/files.py the places that
// create others). The kernel applies the umask to a new file's mode: no code reads or sets the umask, which all threads
// share.
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

// Returns six random letters and digits, which make a temporary name unique.
Expected<std::string> randomSuffix();
// True if `text` has that form.
bool isRandomSuffix(std::string_view text);

// Returns the name under which a file is written until it is complete: "DIR/.NAME-RANDOM" for "DIR/NAME". Of a name
// longer than 200 bytes only the last 200 are kept.
std::string temporaryPath(const std::string& path, const std::string& random);
// True if `name` is a temporary name of a file called `of`.
bool isTemporaryName(std::string_view name, std::string_view of);

// Creates a file and opens it to read and write. Fails if the name exists, also as a link: -1 with errno.
int createExclusive(const std::string& path, mode_t mode = kFileMode);
// Opens a file to write that another process of the run has created with createExclusive(). -1 with errno on failure.
int openExisting(const std::string& path);
// Opens a file to add lines to. -1 with errno on failure. Unlike all others it is written in place, so that it can be
// read while it grows, and may be a pipe or a terminal.
int openLog(const std::string& path);

struct TemporaryFile {
  std::string path;
  int descriptor = -1;
};
// A new file with a temporary name of `path`.
Expected<TemporaryFile> makeTemporaryFile(const std::string& path, mode_t mode = kFileMode);
// A new folder called `prefix` and a random name.
Expected<std::string> makeTemporaryFolder(const std::string& prefix, mode_t mode = kFolderMode);
// Creates a directory and its missing parents, and syncs the parent of each. Returns those created, the outermost
// first.
Expected<std::vector<std::string>> makeFolders(const std::string& folder);

// Makes the names in a folder durable.
Status syncFolder(const std::string& folder);

// The folder part of a path, "." if there is none.
std::string folderOf(const std::string& path);

// Owns a folder for this user alone, and removes it with everything in it on destruction.
class ScratchFolder {
 public:
  static Expected<ScratchFolder> make(const std::string& prefix);
  // Makes one in the folder for temporary files: that of $TMPDIR, $TMP, $TEMP or $TEMPDIR, else /tmp. `name`: how its
  // name begins.
  static Expected<ScratchFolder> makeTemporary(const std::string& name);
  ScratchFolder(ScratchFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  ScratchFolder& operator=(ScratchFolder&&) = delete;
  ~ScratchFolder();
  const std::string& path() const { return path_; }

 private:
  explicit ScratchFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace sheaf
