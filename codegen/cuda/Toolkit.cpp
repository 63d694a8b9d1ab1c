#include "codegen/cuda/Toolkit.h"

#include <cstdlib>
#include <optional>

#include "llvm/ADT/SmallString.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/Program.h"
#include "llvm/Support/raw_ostream.h"
#include "runtime/base/NewFiles.h"

using namespace mlir;
namespace fs = llvm::sys::fs;
namespace path = llvm::sys::path;

namespace sheaf::codegen {
namespace {

constexpr const char* kNeeded = "needs ptxas of the CUDA toolkit 12.8 or newer";
// The threads of ptxas. Always as many: a cubin records its options.
constexpr const char* kSplit = "--split-compile=2";
constexpr int kLeastMajor = 12, kLeastMinor = 8;

// Files for the programs of the toolkit, and what these write.
class ToolFiles {
 public:
  // None: `error` says why.
  static std::optional<ToolFiles> make(std::string& error) {
    Expected<ScratchFolder> folder = ScratchFolder::makeTemporary("sheaf-cuda-");
    if (!folder.ok()) return error = folder.status().message(), std::nullopt;
    return ToolFiles(std::move(*folder));
  }

  const std::string& path() const { return folder_.path(); }
  std::string file(StringRef name) const {
    llvm::SmallString<128> result(folder_.path());
    path::append(result, name);
    return result.str().str();
  }
  bool write(StringRef name, StringRef bytes) const {
    const int descriptor = createExclusive(file(name));
    if (descriptor < 0) return false;
    llvm::raw_fd_ostream stream(descriptor, true);
    stream << bytes;
    stream.close();
    const bool ok = !stream.has_error();
    stream.clear_error();
    return ok;
  }
  std::string read(StringRef name) const {
    auto buffer = llvm::MemoryBuffer::getFile(file(name));
    return buffer ? (*buffer)->getBuffer().str() : std::string();
  }

 private:
  explicit ToolFiles(ScratchFolder folder) : folder_(std::move(folder)) {}
  ScratchFolder folder_;
};

// Runs a program and gives what it prints. A program that fails is an error with the first line that it prints.
FailureOr<std::string> run(const ToolFiles& folder, const std::string& program, ArrayRef<std::string> arguments,
                           std::string& error) {
  SmallVector<StringRef> all{program};
  all.append(arguments.begin(), arguments.end());
  const std::string log = folder.file("log");
  std::string why;
  int status = llvm::sys::ExecuteAndWait(program, all, std::nullopt, {StringRef(""), StringRef(log), StringRef(log)}, 0,
                                         0, &why);
  std::string text = folder.read("log");
  if (status == 0) return text;
  StringRef reason = why.empty() ? StringRef(text).trim().split('\n').first : StringRef(why);
  error = program + " failed: " + (reason.empty() ? "status " + std::to_string(status) : reason.str());
  return failure();
}

// "release 13.0" of `ptxas --version`.
std::optional<std::pair<int, int>> versionOf(StringRef text) {
  auto [before, after] = text.split("release ");
  int major = 0, minor = 0;
  if (after.consumeInteger(10, major) || !after.consume_front(".") || after.consumeInteger(10, minor))
    return std::nullopt;
  return std::pair(major, minor);
}

// The number before `unit`, which ends where the text does.
int numberBefore(StringRef text, StringRef unit) {
  size_t at = text.find(unit);
  if (at == StringRef::npos) return 0;
  StringRef before = text.take_front(at).rtrim();
  int result = 0;
  if (before.substr(before.find_last_not_of("0123456789") + 1).getAsInteger(10, result)) return 0;
  return result;
}

}  // namespace

// The ptxas to use; empty, with the places that have none in `places`, if there is none.
static std::string findPtxas(std::string& places) {
  auto inFolder = [](StringRef folder) {
    llvm::SmallString<128> program = folder;
    path::append(program, "bin", "ptxas");
    return fs::can_execute(program) ? program.str().str() : std::string();
  };
  // A toolkit that is named is the one that is meant.
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"})
    if (const char* value = std::getenv(variable); value && *value) {
      places = std::string("in $") + variable + ", " + value;
      return inFolder(value);
    }
  places = "in /usr/local/cuda or on $PATH; $CUDA_HOME can name its folder";
  std::string usual = inFolder("/usr/local/cuda");
  if (!usual.empty()) return usual;
  auto found = llvm::sys::findProgramByName("ptxas");
  return found ? *found : std::string();
}

FailureOr<Toolkit> findToolkit(std::string& error) {
  std::string places;
  const std::string ptxas = findPtxas(places);
  if (ptxas.empty()) {
    error = std::string(kNeeded) + ", which is not " + places;
    return failure();
  }
  llvm::SmallString<128> fatbinary = path::parent_path(ptxas);
  path::append(fatbinary, "fatbinary");
  if (!fs::can_execute(fatbinary)) {
    error = std::string(kNeeded) + ": " + ptxas + " is there, but fatbinary is not in the same folder";
    return failure();
  }
  const std::optional<ToolFiles> folder = ToolFiles::make(error);
  if (!folder) return failure();
  FailureOr<std::string> text = run(*folder, ptxas, {"--version"}, error);
  if (failed(text)) return failure();
  auto version = versionOf(*text);
  if (!version || *version < std::pair(kLeastMajor, kLeastMinor)) {
    error = std::string(kNeeded) + ": " + ptxas + " is " +
            (version ? "of " + std::to_string(version->first) + "." + std::to_string(version->second)
                     : std::string("of an unknown version"));
    return failure();
  }
  return Toolkit{ptxas, fatbinary.str().str(), std::to_string(version->first) + "." + std::to_string(version->second)};
}

std::vector<KernelUsage> parseUsage(StringRef text) {
  std::vector<KernelUsage> result;
  for (StringRef line : llvm::split(text, '\n')) {
    if (line.contains("Compiling entry function '"))
      result.push_back({line.split('\'').second.split('\'').first.str()});
    if (result.empty()) continue;
    KernelUsage& last = result.back();
    if (line.contains("bytes stack frame")) {
      last.stackBytes = numberBefore(line, " bytes stack frame");
      last.spillBytes = numberBefore(line, " bytes spill stores") + numberBefore(line, " bytes spill loads");
    }
    if (line.contains(" registers")) {
      last.registers = numberBefore(line, " registers");
      last.sharedBytes = numberBefore(line, " bytes smem");
    }
  }
  return result;
}

FailureOr<Assembled> assemblePtx(const Toolkit& toolkit, int architecture, StringRef ptx, std::string& error) {
  const std::optional<ToolFiles> folder = ToolFiles::make(error);
  if (!folder) return failure();
  if (!folder->write("kernels.ptx", ptx)) return error = "cannot write into " + folder->path(), failure();
  FailureOr<std::string> text =
      run(*folder, toolkit.ptxas,
          {"--gpu-name=sm_" + std::to_string(architecture), "--fmad=false", "--verbose", kSplit, "--output-file",
           folder->file("kernels.cubin"), folder->file("kernels.ptx")},
          error);
  if (failed(text)) return failure();
  Assembled result{folder->read("kernels.cubin"), parseUsage(*text)};
  if (result.code.empty()) return error = toolkit.ptxas + " wrote nothing", failure();
  return result;
}

FailureOr<std::string> makeFatBinary(const Toolkit& toolkit, int architecture, StringRef cubin, StringRef ptx,
                                     std::string& error) {
  const std::optional<ToolFiles> folder = ToolFiles::make(error);
  if (!folder) return failure();
  if (!folder->write("kernels.ptx", ptx) || !folder->write("kernels.cubin", cubin))
    return error = "cannot write into " + folder->path(), failure();
  auto image = [&](const char* kind, const char* file) {
    return "--image3=kind=" + std::string(kind) + ",sm=" + std::to_string(architecture) + ",file=" + folder->file(file);
  };
  if (failed(run(*folder, toolkit.fatbinary,
                 {"--create=" + folder->file("kernels.fatbin"), "--64", image("elf", "kernels.cubin"),
                  image("ptx", "kernels.ptx")},
                 error)))
    return failure();
  std::string result = folder->read("kernels.fatbin");
  if (result.empty()) return error = toolkit.fatbinary + " wrote nothing", failure();
  return result;
}

}  // namespace sheaf::codegen
