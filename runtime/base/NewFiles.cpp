#include "runtime/base/NewFiles.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "runtime/base/Text.h"

namespace sheaf {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kLetters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
constexpr size_t kRandomLetters = 6;
constexpr int kMaxAttempts = 100;
// File systems take names of 255 bytes.
constexpr size_t kMaxNameBytes = 200;

bool isFolder(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

}  // namespace

std::string folderOf(const std::string& path) {
  size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

Status syncFolder(const std::string& folder) {
  int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  // A folder that may be written and not read cannot be synced.
  if (descriptor < 0 && errno == EACCES) return {};
  if (descriptor < 0) return Status::error(cat("cannot open folder ", folder, ": ", std::strerror(errno)));
  // Some file systems cannot sync folders (EINVAL); they give no stronger promise to wait for.
  bool failed = fsync(descriptor) != 0 && errno != EINVAL;
  int error = errno;
  close(descriptor);
  if (failed) return Status::error(cat("cannot sync folder ", folder, ": ", std::strerror(error)));
  return {};
}

Expected<std::string> randomSuffix() {
  std::string name;
  while (name.size() < kRandomLetters) {
    unsigned char byte = 0;
    if (getrandom(&byte, 1, 0) != 1) {
      if (errno == EINTR) continue;
      return Status::error(cat("cannot create a random file name: ", std::strerror(errno)));
    }
    // Rejects bytes that would bias the letters.
    if (byte < 256 / kLetters.size() * kLetters.size()) name += kLetters[byte % kLetters.size()];
  }
  return name;
}

bool isRandomSuffix(std::string_view text) {
  return text.size() == kRandomLetters && text.find_first_not_of(kLetters) == std::string_view::npos;
}

std::string temporaryPath(const std::string& path, const std::string& random) {
  const size_t slash = path.rfind('/'), begin = slash == std::string::npos ? 0 : slash + 1;
  // The end of a long name, since names of one set differ there.
  const size_t from = std::max(begin, path.size() - std::min(path.size(), kMaxNameBytes));
  return cat(path.substr(0, begin), ".", path.substr(from), "-", random);
}

bool isTemporaryName(std::string_view name, std::string_view of) {
  return name.size() == of.size() + 2 + kRandomLetters && name[0] == '.' && name.substr(1, of.size()) == of &&
         name[of.size() + 1] == '-' && isRandomSuffix(name.substr(of.size() + 2));
}

int createExclusive(const std::string& path, mode_t mode) {
  return ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
}

int openExisting(const std::string& path) {
  return ::open(path.c_str(), O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
}

int openLog(const std::string& path) {
  return ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, kFileMode);
}

Expected<TemporaryFile> makeTemporaryFile(const std::string& path, mode_t mode) {
  for (int i = 0; i < kMaxAttempts; ++i) {
    Expected<std::string> random = randomSuffix();
    if (!random.ok()) return random.status();
    TemporaryFile file{temporaryPath(path, *random), -1};
    file.descriptor = createExclusive(file.path, mode);
    if (file.descriptor >= 0) return file;
    if (errno != EEXIST) break;
  }
  return Status::error(cat("cannot write ", path, ": ", std::strerror(errno)));
}

Expected<std::string> makeTemporaryFolder(const std::string& prefix, mode_t mode) {
  for (int i = 0; i < kMaxAttempts; ++i) {
    Expected<std::string> random = randomSuffix();
    if (!random.ok()) return random.status();
    std::string path = prefix + *random;
    if (::mkdir(path.c_str(), mode) == 0) return path;
    if (errno != EEXIST) break;
  }
  return Status::error(cat("cannot write into folder ", folderOf(prefix), ": ", std::strerror(errno)));
}

Expected<std::vector<std::string>> makeFolders(const std::string& folder) {
  std::vector<std::string> made;
  auto failed = [&](int error) {
    return Status::error(cat("cannot make folder ", folder, ": ", std::strerror(error)));
  };
  for (size_t end = 0; end < folder.size();) {
    end = std::min(folder.find('/', end + 1), folder.size());
    std::string path = folder.substr(0, end);
    if (::mkdir(path.c_str(), kFolderMode) == 0) {
      // If another process created it, that process syncs it.
      SHEAF_RETURN_IF_ERROR(syncFolder(folderOf(path)));
      made.push_back(std::move(path));
    } else if (const int error = errno; error != EEXIST && !isFolder(path)) {
      return failed(error);
    }
  }
  if (!isFolder(folder)) return failed(ENOTDIR);
  return made;
}

Expected<ScratchFolder> ScratchFolder::make(const std::string& prefix) {
  Expected<std::string> path = makeTemporaryFolder(prefix, kPrivateFolderMode);
  return path.ok() ? Expected<ScratchFolder>(ScratchFolder(std::move(*path))) : path.status();
}

Expected<ScratchFolder> ScratchFolder::makeTemporary(const std::string& name) {
  std::string folder = "/tmp", where = "/tmp (TMPDIR is not set)";
  for (const char* variable : {"TMPDIR", "TMP", "TEMP", "TEMPDIR"})
    if (const char* value = std::getenv(variable); value && *value) {
      folder = value, where = cat(variable, "=", folder);
      break;
    }
  Expected<ScratchFolder> made = make((fs::path(folder) / name).string());
  if (made.ok()) return made;
  return Status::error(cat("no temporary folder can be made in ", where, ": ", made.status().message(),
                           "; set TMPDIR to a folder that can be written"));
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

}  // namespace sheaf
