#include "runtime/io/PipeRows.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>

#include "runtime/base/Text.h"
#include "runtime/plan/Types.h"

namespace sheaf::io {
namespace {

constexpr int kPollMilliseconds = 100;
constexpr std::chrono::seconds kFirstReport(10), kNextReport(30);  // between notes that no data arrive
constexpr uint64_t kMostBytes = uint64_t{1} << 30;                 // of an array
constexpr size_t kPieceBytes = size_t{1} << 20;  // by which memory grows, so that a header cannot ask for much

// The descriptor that a path such as /dev/fd/3 stands for.
std::optional<int> descriptorOf(const std::string& path) {
  if (path == "/dev/stdin") return STDIN_FILENO;
  for (const std::string folder : {"/dev/fd/", "/proc/self/fd/"}) {
    int64_t number = 0;
    if (path.starts_with(folder) && parseInteger(path.substr(folder.size()), number) && number >= 0 &&
        number <= INT32_MAX)
      return static_cast<int>(number);
  }
  return std::nullopt;
}

}  // namespace

bool PipeRows::isPipe(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISFIFO(info.st_mode);
}

PipeRows::PipeRows(std::string path, std::vector<Column> columns, int descriptor, const Waiting& waiting)
    : path_(std::move(path)), columns_(std::move(columns)), descriptor_(descriptor), waiting_(waiting) {}

PipeRows::~PipeRows() {
  close(descriptor_);
}

Expected<std::unique_ptr<PipeRows>> PipeRows::open(const std::string& path, std::vector<Column> columns,
                                                   const Waiting& waiting) {
  // A pipe without a name is not opened a second time: Linux would then not say that its writer has gone already.
  // Opening a named one must not wait for its writer, as it would without O_NONBLOCK.
  const std::optional<int> given = descriptorOf(path);
  const int descriptor =
      given ? fcntl(*given, F_DUPFD_CLOEXEC, 0) : ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return Status::error(cat("cannot open ", path, ": ", std::strerror(errno)));
  return std::unique_ptr<PipeRows>(new PipeRows(path, std::move(columns), descriptor, waiting));
}

Status PipeRows::wrong(const Column& column, const std::string& why) const {
  return Status::error(cat("--data: input '", column.name, "': ", path_, ", row ", received_, ": ", why));
}

Expected<size_t> PipeRows::receive(std::span<std::byte> bytes) {
  size_t count = 0;
  Clock::time_point last = Clock::now();  // when data came
  while (count < bytes.size()) {
    pollfd awaited{descriptor_, POLLIN, 0};
    const int ready = poll(&awaited, 1, kPollMilliseconds);
    const bool failed = waiting_.failed && *waiting_.failed;
    if (failed || (waiting_.interrupted && *waiting_.interrupted))
      return Status::error(cat("waiting for rows, but the run ", failed ? "failed" : "was interrupted"));
    if (const Clock::time_point now = Clock::now();
        ready == 0 && waiting_.report && now >= last + kFirstReport && now >= nextReport_) {
      nextReport_ = now + kNextReport;
      waiting_.report(cat("waiting for rows of ", path_, ": nothing has come for ",
                          std::chrono::round<std::chrono::seconds>(now - last).count(), " s"));
    }
    if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
    const ssize_t got = ready < 0 ? -1 : ::read(descriptor_, bytes.data() + count, bytes.size() - count);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got < 0) return Status::error(cat("cannot read: ", std::strerror(errno)));
    if (got == 0) break;
    count += static_cast<size_t>(got);
    last = Clock::now();
  }
  return count;
}

Expected<NpyHeader> PipeRows::receiveHeader() {
  std::vector<std::byte> header(kNpyPreamble);
  Expected<size_t> got = receive(header);
  if (!got.ok()) return got.status();
  if (*got == 0) return NpyHeader{};
  header.resize(*got);
  Expected<size_t> size = npyHeaderBytes(header);
  if (!size.ok()) return size.status();
  header.resize(std::max(*size, kNpyPreamble));
  got = receive(std::span(header).subspan(kNpyPreamble));
  if (!got.ok()) return got.status();
  if (*got < header.size() - kNpyPreamble) return Status::error("the .npy header is truncated");
  return parseNpyHeader(header);
}

Expected<std::shared_ptr<PipeRows::Chunk>> PipeRows::receiveChunk() {
  auto chunk = std::make_shared<Chunk>();
  chunk->first = received_;
  for (const Column& column : columns_) {
    Expected<NpyHeader> header = receiveHeader();
    if (!header.ok()) return wrong(column, header.status().message());
    const bool isFirst = &column == &columns_.front();
    if (header->bytes == 0) {
      if (isFirst) return std::shared_ptr<Chunk>();
      return wrong(column, "the pipe ended before its array");
    }
    const std::span<const int64_t> shape(header->shape);
    if (shape.size() != column.row.size() + 1 || !std::equal(column.row.begin(), column.row.end(), shape.begin() + 1)) {
      std::string want = "[rows";
      for (int64_t size : column.row) want += cat(", ", size);
      return wrong(column, cat("the array's shape is ", shapeText(shape), ", the plan expects ", want, "]"));
    }
    if (!convertible(header->type, column.target))
      return wrong(column, cat("the array's elements are ", nameOf(header->type), ", the plan expects ",
                               nameOf(column.target), conversionRemedy(column.target)));
    const uint64_t rows = static_cast<uint64_t>(shape[0]);
    if (!isFirst && rows != chunk->rows)
      return wrong(column, cat("the array has ", rows, " rows, that of '", columns_.front().name, "' before it ",
                               chunk->rows, ": the arrays of all inputs take turns, in the order of --data"));
    const std::optional<uint64_t> elements = plan::elementCount(shape);
    if (!elements || *elements > kMostBytes / bytesOf(header->type))
      return wrong(column, cat("the array of shape ", shapeText(shape), " is larger than ", bytesText(kMostBytes),
                               "; write fewer rows at a time"));
    chunk->rows = rows;
    chunk->left += static_cast<int64_t>(rows) * column.reads;
    chunk->types.push_back(header->type);
    std::vector<std::byte>& data = chunk->data.emplace_back();
    for (size_t missing = *elements * bytesOf(header->type); missing > 0;) {
      const size_t piece = std::min(missing, kPieceBytes), at = data.size();
      data.resize(at + piece);
      Expected<size_t> got = receive(std::span(data).subspan(at));
      if (!got.ok()) return wrong(column, got.status().message());
      if (*got < piece)
        return wrong(column, cat("the pipe ended within an array of shape ", shapeText(shape), ", ", missing - *got,
                                 " bytes before its end"));
      missing -= piece;
    }
  }
  return chunk;
}

Status PipeRows::await(uint64_t rows) {
  Status status;
  auto known = [&] {
    std::lock_guard lock(mutex_);
    if (received_ >= rows) return true;
    status = error_;
    return !status.ok();
  };
  if (known()) return status;
  std::lock_guard receiving(receiving_);
  while (!known()) {
    Expected<std::shared_ptr<Chunk>> chunk = receiveChunk();
    std::lock_guard lock(mutex_);
    if (!chunk.ok()) {
      error_ = chunk.status();
    } else if (!*chunk) {
      error_ = Status::error(cat("--data: ", path_, " ended after ", received_, received_ == 1 ? " row" : " rows",
                                 ", and the run needs more: its steps times the global batch; write as many, or give "
                                 "fewer --steps"));
    } else if ((*chunk)->rows > 0) {
      received_ += (*chunk)->rows;
      chunks_.push_back(std::move(*chunk));
    }
  }
  return status;
}

Expected<std::shared_ptr<PipeRows::Chunk>> PipeRows::chunkOf(uint64_t row) {
  SHEAF_RETURN_IF_ERROR(await(row + 1));
  std::lock_guard lock(mutex_);
  for (const std::shared_ptr<Chunk>& chunk : chunks_)
    if (row >= chunk->first && row < chunk->first + chunk->rows) return chunk;
  return Status::error(cat("--data: row ", row, " of ", path_, " has been read already"));
}

Status PipeRows::read(size_t column, uint64_t row, uint64_t count, const Use& use) {
  for (uint64_t done = 0; done < count;) {
    Expected<std::shared_ptr<Chunk>> found = chunkOf(row + done);
    if (!found.ok()) return found.status();
    std::shared_ptr<Chunk> chunk = std::move(*found);
    const uint64_t size = chunk->data[column].size() / chunk->rows;
    const uint64_t begin = row + done - chunk->first, end = std::min(chunk->rows, begin + count - done);
    for (uint64_t i = begin; i < end; ++i)
      SHEAF_RETURN_IF_ERROR(use(chunk->types[column], chunk->data[column].data() + i * size, done + i - begin));
    done += end - begin;
    std::lock_guard lock(mutex_);
    chunk->left -= static_cast<int64_t>(end - begin);
    if (chunk->left <= 0) std::erase(chunks_, chunk);
  }
  return {};
}

}  // namespace sheaf::io
