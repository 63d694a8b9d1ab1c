// Rows that come through a pipe: `--data x,labels=PIPE`. The pipe carries .npy arrays one after another, as numpy.save
// writes them: rows of the first input, as many of the second and so on, then again of the first. An array may have any
// number of rows, up to 1 GiB.
//
// Rows are numbered from 0 in the order in which they come. Any thread may ask for any row; each row of an input may be
// read so often as the plan does, and what has been read so often is forgotten. Nothing is read ahead of what is asked
// for, except the rest of an array and the arrays of the other inputs that belong to it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/io/DataType.h"
#include "runtime/io/Npy.h"

namespace sheaf::io {

class PipeRows {
 public:
  // An input whose rows the pipe carries.
  struct Column {
    std::string name;
    std::vector<int64_t> row;  // the shape of a row
    DataType target = DataType::F32;
    int64_t reads = 0;  // how often the plan reads each row
  };

  // Whether `path` is a pipe: a named one, /dev/fd/N (which is what a shell's <(command) stands for) or /dev/stdin.
  static bool isPipe(const std::string& path);
  // The conditions that end waiting for rows, and the function that reports it.
  struct Waiting {
    const std::atomic<bool>* failed = nullptr;       // the run has failed elsewhere
    const std::atomic<bool>* interrupted = nullptr;  // the run begins no further step
    // Called from any thread after 10 seconds without data, and every 30 seconds from then on at most.
    std::function<void(const std::string& text)> report = {};
  };
  // Does not wait for a writer.
  static Expected<std::unique_ptr<PipeRows>> open(const std::string& path, std::vector<Column> columns,
                                                  const Waiting& waiting);
  ~PipeRows();

  // Waits until the rows below `rows` have come. An error, which read() gives as well, says why they do not come.
  // Meanwhile other threads can read rows that have come.
  Status await(uint64_t rows);

  // Calls use(type, elements, i) for row `row + i` of a column, for each i below `count`, after having waited for it.
  // Errors name the pipe and the row: of what the pipe carries, or that it ended before the row.
  using Use = std::function<Status(DataType type, const std::byte* elements, uint64_t i)>;
  Status read(size_t column, uint64_t row, uint64_t count, const Use& use);

 private:
  // One array of each column, with the same rows.
  struct Chunk {
    uint64_t first = 0, rows = 0;
    std::vector<DataType> types;               // by column
    std::vector<std::vector<std::byte>> data;  // by column
    int64_t left = 0;                          // reads of rows to come; under the mutex
  };

  PipeRows(std::string path, std::vector<Column> columns, int descriptor, const Waiting& waiting);
  Expected<std::shared_ptr<Chunk>> chunkOf(uint64_t row);
  Expected<std::shared_ptr<Chunk>> receiveChunk();
  // The next array's header; of no bytes where the pipe has ended before it.
  Expected<NpyHeader> receiveHeader();
  // How many bytes came: fewer than asked for where the pipe has ended.
  Expected<size_t> receive(std::span<std::byte> bytes);
  Status wrong(const Column& column, const std::string& why) const;

  const std::string path_;
  const std::vector<Column> columns_;
  const int descriptor_;
  const Waiting waiting_;
  using Clock = std::chrono::steady_clock;
  std::mutex receiving_;               // held while waiting for bytes; taken before the other one
  Clock::time_point nextReport_ = {};  // the earliest; under that mutex
  std::mutex mutex_;                   // of what follows
  std::deque<std::shared_ptr<Chunk>> chunks_;
  uint64_t received_ = 0;  // rows
  Status error_;           // what ended the reading, for all threads
};

}  // namespace sheaf::io
