// A run's data: which row of which file is which rank's, and the rows themselves, converted to the plan's types.
//
// Sample g of a run (g counts from the first sample ever read) is row g mod R of every input, R their number of rows,
// or, shuffled, the row that a permutation keyed by (seed, g / R) gives g mod R. Step by step the global batch takes
// the next B samples; rank r takes its contiguous b = B / ranks of them, or, of M micro-batches, M times B / (ranks M).
// A batch goes on over the end of a pass.
//
// Several files of one input are read as one: their rows follow each other in the order of the files' names. No row
// spans two files: what a file of tokens has beyond whole rows is not read.
//
// Rows may come through a pipe instead (PipeRows.h), whose first row is the run's first sample: they have no number and
// no other order, and one process reads them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/io/DataFile.h"
#include "runtime/io/DataType.h"
#include "runtime/io/PipeRows.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::io {

// "NAME=FILE.npy"; "NAME=TOKENS[:u16]": row i of input NAME is tokens [i*S, (i+1)*S), S the input's length;
// "NAME,LABELS=TOKENS[:u16]": and row i of LABELS is tokens [i*S+1, (i+1)*S+1).
// "NAME,NAME,...=PIPE": arrays of these inputs in turns.
struct DataArgument {
  std::vector<std::string> inputs;  // at least one; of a file at most two
  std::string file;                 // or a pattern with *, ? or [...], of which all files that match are taken
  std::string type;                 // of raw tokens; empty: as the file's name says
};
Expected<DataArgument> parseDataArgument(const std::string& text);

// Who reads the data. The evaluation reads every row once, in order; where the last batch has too few rows it finds the
// last one again.
enum class DataReader { kTraining, kEvaluation };

// What a pipe needs to know of the run.
struct PipeOptions {
  uint64_t firstSample = 0;  // the first one of the run
  PipeRows::Waiting waiting = {};
};

class DataSource {
 public:
  // Every input that the reader has is given exactly once, and all inputs have the same number of rows. An input that
  // is whole has a file of its own shape.
  static Expected<DataSource> open(const plan::Plan& plan, const std::vector<DataArgument>& arguments,
                                   std::optional<int64_t> shuffleSeed, DataReader reader = DataReader::kTraining,
                                   const PipeOptions& pipe = {});

  uint64_t rows() const { return rows_; }  // 0: they come through a pipe
  bool isPiped() const { return pipe_ != nullptr; }
  // Names inputs that are given although the reader does not need them. They are not read.
  const std::vector<std::string>& notes() const { return notes_; }
  // All that it reads.
  const std::vector<DataFile>& files() const { return files_; }
  // Each input's data in words and by its file's size and hash: the same for processes that read the same.
  Expected<std::vector<std::string>> describe() const;
  // Waits until the rows below sample `end` have come through the pipe; an error says why they do not come. Returns at
  // once if there is no pipe.
  Status await(uint64_t end) const;
  // Fills the rows of one input that are a piece of the global batch that starts at sample `sample`: a rank's, or of
  // several micro-batches one of a rank's (plan.proto's Dealing). An error names the row of the
  // file that has a number which does not fit the type, or a label out of range. Threads may call it together.
  Status read(int64_t piece, uint32_t input, uint64_t sample, std::span<std::byte> destination) const;
  // Reads the labels and ids of files until `enough` returns true, which is asked before each block of rows. Returns
  // the error of the first one that is out of range.
  Status checkClasses(const std::function<bool()>& enough) const;

 private:
  // The rows of an input that lie in one file.
  struct Piece {
    uint64_t offset = 0;  // place of the first one in its file
    uint64_t firstRow = 0, rows = 0;
    size_t file = 0;  // in files_
  };
  struct InputRows {
    std::vector<Piece> pieces;
    DataType type = DataType::F32, target = DataType::F32;
    uint64_t rowElements = 0;  // rows follow each other at this distance, in elements
    uint64_t rowsPerPiece = 0;
    bool wanted = false;      // by the reader
    bool whole = false;       // the same for all rows
    bool isRowIndex = false;  // read() writes the rows' numbers in the batch, whatever the sample
    int64_t classes = 0;      // labels are below it; 0: any numbers
    std::optional<int64_t> ignored;
    bool ids = false;              // of rows of a table, of which there are `classes`
    std::optional<size_t> column;  // of the pipe, which has these rows

    bool isFilled() const { return !pieces.empty() || column; }
    const Piece& pieceOf(uint64_t row) const;
  };
  Status addInput(const plan::Plan& plan, const std::string& name, const DataArgument& argument, bool shifted,
                  size_t firstFile);
  // What `file` holds of an input: its rows, without their place among others, and their type. An input that is whole
  // is one row.
  Expected<std::pair<Piece, DataType>> rowsIn(const plan::Input& input, const DataArgument& argument, bool shifted,
                                              const DataFile& file) const;
  // True if the model has the input, and the reader does not need it.
  bool isUnneeded(const plan::Plan& plan, const std::string& name) const;
  // The input of a name, which the reader must have and which has no data yet.
  Expected<size_t> unfilled(const plan::Plan& plan, const std::string& name) const;
  Status addPipe(const plan::Plan& plan, const DataArgument& argument, const PipeOptions& options);
  // Keeps the smallest files in memory.
  Status holdSmallFiles();
  // The size of a file as it was found during one read().
  struct FoundSize {
    const DataFile* file = nullptr;
    uint64_t size = 0;
  };
  // Reads rows that follow each other in one file: `count` of them, from `row` on.
  Status readRows(const InputRows& rows, const Piece& piece, uint64_t row, uint64_t count, std::byte* to,
                  FoundSize& found) const;
  // Converts a row's elements to the plan's type. Errors do not name the row.
  Status take(const InputRows& rows, DataType type, const std::byte* from, std::byte* to) const;
  void findWanted(const plan::Plan& plan);
  // "--data" or "--eval-data".
  const char* option() const { return reader_ == DataReader::kTraining ? "--data" : "--eval-data"; }

  std::vector<DataFile> files_;
  std::vector<InputRows> inputs_;
  std::vector<std::string> names_, notes_;
  std::unique_ptr<PipeRows> pipe_;
  uint64_t firstSample_ = 0;  // that the pipe has
  uint64_t rows_ = 0;
  std::optional<int64_t> shuffleSeed_;
  DataReader reader_ = DataReader::kTraining;
};

}  // namespace sheaf::io
