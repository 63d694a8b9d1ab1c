#include "runtime/io/DataSource.h"

#include <glob.h>
#include <sys/stat.h>

#include <algorithm>

#include "runtime/base/Hash.h"
#include "runtime/base/RegularFile.h"
#include "runtime/base/Text.h"
#include "runtime/io/Npy.h"
#include "runtime/io/Permutation.h"
#include "runtime/io/TokenFile.h"
#include "runtime/plan/Types.h"

namespace sheaf::io {
namespace {

// Each has a descriptor of its own.
constexpr size_t kMostFiles = 32768;
// Bytes of small files that are held in memory.
constexpr uint64_t kHeldBytes = uint64_t{16} << 20;
// Rows are read at once up to so many bytes, if they must be converted.
constexpr uint64_t kScratchBytes = uint64_t{64} << 10;

// The files of a name or pattern, by name. A file that has the name of a pattern is meant itself.
Expected<std::vector<std::string>> filesOf(const std::string& pattern) {
  struct stat info;
  if (pattern.find_first_of("*?[") == std::string::npos || stat(pattern.c_str(), &info) == 0)
    return std::vector{pattern};
  glob_t found{};
  const int error = glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found);
  std::vector<std::string> files(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  if (error == GLOB_NOSPACE) return Status::error(cat(pattern, " matches too many files"));
  if (files.empty()) return Status::error(cat("no file matches ", pattern));
  if (files.size() > kMostFiles)
    return Status::error(cat(pattern, " matches ", files.size(), " files, more than ", kMostFiles));
  std::sort(files.begin(), files.end());
  return files;
}

Expected<NpyHeader> headerOf(const DataFile& file) {
  Expected<std::vector<std::byte>> head = file.head(kNpyPreamble);
  if (!head.ok()) return head.status();
  Expected<size_t> bytes = npyHeaderBytes(*head);
  if (!bytes.ok()) return bytes.status();
  head = file.head(*bytes);
  return head.ok() ? parseAndCheckNpyHeader(*head, file.size()) : head.status();
}

bool isRaw(const DataArgument& argument) {
  return !argument.type.empty() || looksLikeTokens(argument.file);
}

// Checks the last argument: labels of tokens must be the tokens that follow them. The graph shifts them, or two names
// of one argument do, the second of which is that of the labels.
Status checkTokens(const plan::Plan& plan, std::span<const DataArgument> arguments, const char* option,
                   std::vector<std::string>& notes) {
  const DataArgument& last = arguments.back();
  auto find = [&](const std::string& name) {
    static const plan::Input kNone;
    const auto found = std::find_if(plan.inputs().begin(), plan.inputs().end(),
                                    [&](const plan::Input& input) { return input.name() == name; });
    return found == plan.inputs().end() ? kNone : *found;
  };
  auto isLabels = [&](const std::string& name) { return find(name).classes() > 0 && !find(name).ids(); };
  if (isRaw(last) && last.inputs.size() == 2) {
    const auto& [tokens, labels] = std::tie(last.inputs[0], last.inputs[1]);
    const std::string given = cat(option, " ", tokens, ",", labels, "=", last.file);
    if (tokens == labels)
      return Status::error(cat(given, " names '", tokens, "' twice; the second name is the labels'"));
    if (find(labels).shifted())
      return Status::error(cat(option, ": the model shifts '", labels, "' by itself, and ", tokens, ",", labels,
                               "=TOKENS would shift them once more: give both the same tokens, ", option, " ", tokens,
                               "=", last.file, " ", option, " ", labels, "=", last.file));
    if (isLabels(tokens) && !isLabels(labels))
      return Status::error(cat(given, " takes for '", labels, "' the tokens that follow those of '", tokens, "', but '",
                               tokens, "' has the labels; write ", option, " ", labels, ",", tokens, "=", last.file,
                               ". To predict the previous token instead, give each input its own .npy file"));
  }
  for (const DataArgument& other : arguments.first(arguments.size() - 1)) {
    const std::string &a = other.inputs[0], &b = last.inputs[0];
    if (other.file != last.file || a == b || find(a).shifted() || find(b).shifted()) continue;
    if (isRaw(last))
      return Status::error(cat(option, ": ", last.file, " is given for two inputs, which would not be shifted; write ",
                               option, " ", isLabels(a) ? b : a, ",", isLabels(a) ? a : b, "=", last.file));
    // A model may copy its input: then the same array is right.
    if ((find(a).ids() && find(b).tokens()) || (find(a).tokens() && find(b).ids()))
      notes.push_back(cat(option, ": ", last.file, " has the tokens and the labels, which are not shifted: to predict ",
                          "the next token, give labels of their own, of which number i is token i + 1"));
  }
  return {};
}

}  // namespace

Expected<DataArgument> parseDataArgument(const std::string& text) {
  size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size())
    return Status::error("expected NAME=FILE.npy or NAME,LABELS=TOKENS.bin");
  DataArgument argument;
  for (size_t begin = 0; begin <= equals;) {
    const size_t end = std::min(text.find(',', begin), equals);
    argument.inputs.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  argument.file = text.substr(equals + 1);
  size_t colon = argument.file.rfind(':');
  if (colon != std::string::npos && colon + 1 < argument.file.size() &&
      argument.file.find('/', colon) == std::string::npos && argument.file.size() - colon <= 4) {
    argument.type = argument.file.substr(colon + 1);
    argument.file.resize(colon);
  }
  for (const std::string& name : argument.inputs)
    if (name.empty()) return Status::error("expected one input, or tokens and labels, before '='");
  return argument;
}

const DataSource::Piece& DataSource::InputRows::pieceOf(uint64_t row) const {
  return *(std::upper_bound(pieces.begin(), pieces.end(), row,
                            [](uint64_t r, const Piece& piece) { return r < piece.firstRow; }) -
           1);
}

Expected<std::pair<DataSource::Piece, DataType>> DataSource::rowsIn(const plan::Input& input,
                                                                    const DataArgument& argument, bool shifted,
                                                                    const DataFile& file) const {
  std::span<const int64_t> shape = plan::shapeOf(input);
  Piece piece;
  if (argument.inputs.size() > 2)
    return Status::error("one file has the rows of one input, or of tokens and labels; more come through a pipe");
  const bool raw = !argument.type.empty() || looksLikeTokens(file.path());
  if (raw && input.whole())
    return Status::error(cat("it is the same for all rows; give a .npy file of shape ", shapeText(shape)));
  if (raw) {
    Expected<std::vector<std::byte>> head = file.head(kTokenHeaderBytes);
    if (!head.ok()) return head.status();
    Expected<Tokens> tokens = parseTokens(*head, file.size(), file.path(), argument.type);
    if (!tokens.ok()) return tokens.status();
    const uint64_t rowElements = *plan::elementCount(shape.subspan(1));
    // The labels' last token is one further, so all inputs of a file leave it one token.
    uint64_t spare = argument.inputs.size() == 2 ? 1 : 0;
    piece.rows = tokens->count > spare ? (tokens->count - spare) / rowElements : 0;
    if (piece.rows == 0)
      return Status::error(cat(tokens->count, " tokens are fewer than one row of ", rowElements + spare));
    piece.offset = tokens->offset + (shifted ? bytesOf(tokens->type) : 0);
    return std::pair(piece, tokens->type);
  }
  if (argument.inputs.size() == 2)
    return Status::error("two inputs of one file need raw tokens (.bin, .u8, .u16, .u32 or FILE:u16)");
  Expected<NpyHeader> array = headerOf(file);
  if (!array.ok()) return array.status();
  std::span<const int64_t> have(array->shape);
  piece.offset = array->bytes;
  if (input.whole()) {
    if (!std::equal(shape.begin(), shape.end(), have.begin(), have.end()))
      return Status::error(cat("its shape is ", shapeText(have), ", the plan expects ", shapeText(shape)));
    piece.rows = 1;
    return std::pair(piece, array->type);
  }
  bool same = have.size() == shape.size() && std::equal(shape.begin() + 1, shape.end(), have.begin() + 1);
  if (same && have[0] == 0) return Status::error("has no rows");
  if (!same) {
    std::string want = "[rows";
    for (int64_t size : shape.subspan(1)) want += cat(", ", size);
    return Status::error(cat("its shape is ", shapeText(have), ", the plan expects ", want, "]"));
  }
  piece.rows = static_cast<uint64_t>(have[0]);
  return std::pair(piece, array->type);
}

bool DataSource::isUnneeded(const plan::Plan& plan, const std::string& name) const {
  for (int i = 0; i < plan.inputs_size(); ++i)
    if (plan.inputs(i).name() == name) return !inputs_[static_cast<size_t>(i)].wanted && plan::isData(plan.inputs(i));
  return std::find(plan.unneeded_inputs().begin(), plan.unneeded_inputs().end(), name) != plan.unneeded_inputs().end();
}

Expected<size_t> DataSource::unfilled(const plan::Plan& plan, const std::string& name) const {
  int index = 0;
  while (index < plan.inputs_size() && plan.inputs(index).name() != name) ++index;
  if (index == plan.inputs_size() || !inputs_[static_cast<size_t>(index)].wanted) {
    std::vector<std::string> wanted;
    for (size_t i = 0; i < inputs_.size(); ++i)
      if (inputs_[i].wanted) wanted.push_back(names_[i]);
    std::string near = nearest(name, wanted);
    return Status::error(cat(option(), ": the model has no input '", name, "'; its inputs are ", listText(wanted),
                             near.empty() ? "" : cat("; did you mean '", near, "'?")));
  }
  const InputRows& rows = inputs_[static_cast<size_t>(index)];
  if (rows.isFilled()) return Status::error(cat(option(), ": input '", name, "' is given twice"));
  return static_cast<size_t>(index);
}

Status DataSource::addPipe(const plan::Plan& plan, const DataArgument& argument, const PipeOptions& options) {
  auto wrong = [&](const std::string& why) { return Status::error(cat(option(), ": ", argument.file, ": ", why)); };
  if (reader_ == DataReader::kEvaluation)
    return wrong("an evaluation reads files, which it can read again; not a pipe");
  if (shuffleSeed_) return wrong("the rows of a pipe come in their own order: leave out --shuffle, or give files");
  if (pipe_) return wrong("the rows of all inputs come through one pipe, as in --data x,labels=PIPE");
  if (!argument.type.empty()) return wrong("a pipe carries .npy arrays, not raw tokens");
  std::vector<PipeRows::Column> columns;
  for (const std::string& name : argument.inputs) {
    if (isUnneeded(plan, name))
      return wrong(cat("the input '", name, "' is not needed: leave it out of the pipe and of ", option()));
    Expected<size_t> index = unfilled(plan, name);
    if (!index.ok()) return index.status();
    const plan::Input& input = plan.inputs(static_cast<int>(*index));
    if (input.whole())
      return Status::error(cat(option(), ": input '", name, "' is the same for all rows; give one .npy file of shape ",
                               shapeText(plan::shapeOf(input))));
    std::span<const int64_t> row = plan::shapeOf(input).subspan(1);
    InputRows& rows = inputs_[*index];
    rows.column = columns.size();
    rows.target = dataTypeOf(input.type());
    rows.rowElements = *plan::elementCount(row);
    rows.rowsPerPiece = static_cast<uint64_t>(input.shape(0));
    rows.classes = input.classes();
    if (input.has_ignored_label()) rows.ignored = input.ignored_label();
    rows.ids = input.ids();
    PipeRows::Column& column =
        columns.emplace_back(PipeRows::Column{name, std::vector<int64_t>(row.begin(), row.end()), rows.target, 0});
    for (const plan::Instruction* instruction : plan::stepInstructions(plan))
      column.reads += instruction->has_input() && instruction->input().input() == *index;
    column.reads /= plan::microBatches(plan);
  }
  Expected<std::unique_ptr<PipeRows>> pipe = PipeRows::open(argument.file, std::move(columns), options.waiting);
  if (!pipe.ok()) return Status::error(cat(option(), ": ", pipe.status().message()));
  pipe_ = std::move(*pipe);
  firstSample_ = options.firstSample;
  return {};
}

Status DataSource::addInput(const plan::Plan& plan, const std::string& name, const DataArgument& argument, bool shifted,
                            size_t firstFile) {
  Expected<size_t> index = unfilled(plan, name);
  if (!index.ok()) return index.status();
  const plan::Input& input = plan.inputs(static_cast<int>(*index));
  InputRows& rows = inputs_[*index];

  auto wrong = [&](const std::string& file, const std::string& why) {
    return Status::error(cat(option(), ": input '", name, "': ", file, ": ", why));
  };
  std::span<const int64_t> shape = plan::shapeOf(input);
  rows.whole = input.whole();
  if (rows.whole && files_.size() - firstFile > 1)
    return wrong(argument.file, cat("it is the same for all rows; give one .npy file of shape ", shapeText(shape)));
  uint64_t count = 0;
  rows.target = dataTypeOf(input.type());
  rows.classes = input.classes();
  if (input.has_ignored_label()) rows.ignored = input.ignored_label();
  rows.ids = input.ids();
  for (size_t number = firstFile; number < files_.size(); ++number) {
    const DataFile& file = files_[number];
    Expected<std::pair<Piece, DataType>> found = rowsIn(input, argument, shifted, file);
    if (!found.ok()) return wrong(file.path(), found.status().message());
    auto [piece, type] = *found;
    if (!convertible(type, rows.target))
      return wrong(file.path(), cat("its elements are ", nameOf(type), ", the plan expects ", nameOf(rows.target),
                                    conversionRemedy(rows.target)));
    if (number > firstFile && type != rows.type)
      return wrong(file.path(), cat("its elements are ", nameOf(type), ", those of ", files_[firstFile].path(), " are ",
                                    nameOf(rows.type), "; files that are read as one have one type"));
    rows.type = type;
    piece.firstRow = count;
    piece.file = number;
    rows.pieces.push_back(piece);
    count += piece.rows;
  }
  rows.rowElements = *plan::elementCount(rows.whole ? shape : shape.subspan(1));
  rows.rowsPerPiece = rows.whole ? 1 : static_cast<uint64_t>(shape[0]);
  if (rows.whole) return {};
  if (rows_ != 0 && rows_ != count)
    return wrong(argument.file,
                 cat("it has ", count, " rows, other inputs have ", rows_,
                     count == static_cast<uint64_t>(plan::rowsAtOnce(plan))
                         ? "; if it is meant to be the same for all rows, compile with another --batch: one that is "
                           "not its first dimension"
                         : ""));
  rows_ = count;
  return {};
}

void DataSource::findWanted(const plan::Plan& plan) {
  std::vector<bool> evaluated(inputs_.size()), trained(inputs_.size());
  for (const plan::Section& section : plan::sectionsOf(plan))
    for (const plan::Instruction& instruction : *section.list)
      if (instruction.has_input())
        (section.list == &plan.evaluation() ? evaluated : trained)[instruction.input().input()] = true;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const bool ofTraining = trained[i] || !evaluated[i];
    inputs_[i].wanted = (reader_ == DataReader::kTraining ? ofTraining : bool(evaluated[i])) &&
                        plan::isData(plan.inputs(static_cast<int>(i)));
    inputs_[i].isRowIndex = plan.inputs(static_cast<int>(i)).row_index();
  }
}

Expected<DataSource> DataSource::open(const plan::Plan& plan, const std::vector<DataArgument>& arguments,
                                      std::optional<int64_t> shuffleSeed, DataReader reader, const PipeOptions& pipe) {
  DataSource source;
  source.reader_ = reader;
  const char* option = source.option();
  source.shuffleSeed_ = shuffleSeed;
  source.inputs_.resize(static_cast<size_t>(plan.inputs_size()));
  for (const plan::Input& input : plan.inputs()) source.names_.push_back(input.name());
  source.findWanted(plan);
  for (size_t i = 0; i < arguments.size(); ++i) {
    const DataArgument& argument = arguments[i];
    if (PipeRows::isPipe(argument.file)) {
      SHEAF_RETURN_IF_ERROR(source.addPipe(plan, argument, pipe));
      continue;
    }
    SHEAF_RETURN_IF_ERROR(checkTokens(plan, std::span(arguments).first(i + 1), option, source.notes_));
    Expected<std::vector<std::string>> paths = filesOf(argument.file);
    if (!paths.ok()) return Status::error(cat(option, ": ", paths.status().message()));
    const size_t firstFile = source.files_.size();
    for (const std::string& path : *paths) {
      Expected<DataFile> file = DataFile::open(path);
      if (!file.ok()) return Status::error(cat(option, ": ", file.status().message()));
      source.files_.push_back(std::move(*file));
    }
    for (size_t j = 0; j < argument.inputs.size(); ++j) {
      const std::string& name = argument.inputs[j];
      if (source.isUnneeded(plan, name))
        source.notes_.push_back(cat(option, ": ",
                                    source.reader_ == DataReader::kTraining ? "the loss" : "the evaluation",
                                    " does not need the input '", name, "'; its data are not read"));
      else
        SHEAF_RETURN_IF_ERROR(source.addInput(plan, name, argument, j == 1, firstFile));
    }
  }
  // Saves, logs and libraries need descriptors, too: a run that would lack them when it saves does not start.
  constexpr uint64_t kReserved = 128;
  const uint64_t files = source.files_.size(), most = allowMostOpenFiles();
  if (files > kReserved && files + kReserved > most)
    return Status::error(cat(option, ": ", files, " files stay open during a run, and the process may open ", most,
                             "; raise `ulimit -n` to ", files + kReserved, ", or join files"));
  for (size_t i = 0; i < source.inputs_.size(); ++i)
    if (source.inputs_[i].wanted && !source.inputs_[i].isFilled())
      return Status::error(cat("input '", source.names_[i], "' ",
                               shapeText(plan::shapeOf(plan.inputs(static_cast<int>(i)))), " has no data; pass ",
                               option, " ", source.names_[i], "=FILE.npy"));
  for (size_t i = 0; source.pipe_ && i < source.inputs_.size(); ++i)
    if (!source.inputs_[i].pieces.empty() && !source.inputs_[i].whole)
      return Status::error(cat(option, ": input '", source.names_[i],
                               "' has rows in a file, others come through a pipe: give all rows by one of them"));
  SHEAF_RETURN_IF_ERROR(source.holdSmallFiles());
  // Where no input has rows there is one batch to evaluate.
  if (source.rows_ == 0 && !source.pipe_) source.rows_ = static_cast<uint64_t>(plan::rowsAtOnce(plan));
  return source;
}

Expected<std::vector<std::string>> DataSource::describe() const {
  std::vector<std::string> lines;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (inputs_[i].pieces.empty()) continue;
    uint64_t bytes = 0;
    std::string places;  // of the rows in each file, and what is in it
    for (const Piece& piece : inputs_[i].pieces) {
      const DataFile& file = files_[piece.file];
      Expected<std::vector<std::byte>> head = file.head(kFileHashBytes);
      if (!head.ok()) return head.status();
      bytes += file.size();
      places += cat(piece.rows, " at ", piece.offset, " of ", file.size(), " ", hexText(fileHash(*head)), "; ");
    }
    const size_t count = inputs_[i].pieces.size();
    lines.push_back(cat(option(), " ", names_[i], ": ", rows_, " rows of ", nameOf(inputs_[i].type), " in ", count,
                        count == 1 ? " file of " : " files of ", bytes, " bytes with hash ", hexText(xxh64(places))));
  }
  return lines;
}

Status DataSource::take(const InputRows& rows, DataType type, const std::byte* from, std::byte* to) const {
  if (from != to) SHEAF_RETURN_IF_ERROR(convert(type, from, rows.target, to, rows.rowElements));
  if (rows.classes == 0) return {};
  const auto label = labelOutOfRange(rows.target, to, rows.rowElements, rows.classes, rows.ignored);
  if (!label) return {};
  return Status::error(cat(rows.ids ? "id " : "label ", *label, " is not in [0, ", rows.classes, ")",
                           rows.ignored ? cat(" and is not ignore_index (", *rows.ignored, ")") : ""));
}

Status DataSource::await(uint64_t end) const {
  return pipe_ ? pipe_->await(end - firstSample_) : Status();
}

Status DataSource::read(int64_t piece, uint32_t input, uint64_t sample, std::span<std::byte> destination) const {
  const InputRows& rows = inputs_[input];
  if (rows.isRowIndex) {
    const uint64_t count = destination.size() / sizeof(int64_t);
    for (uint64_t i = 0; i < count; ++i) {
      const int64_t number = piece * static_cast<int64_t>(count) + static_cast<int64_t>(i);
      std::memcpy(destination.data() + i * sizeof number, &number, sizeof number);
    }
    return {};
  }
  size_t targetBytes = rows.rowElements * bytesOf(rows.target);
  if (destination.size() != targetBytes * rows.rowsPerPiece)
    return Status::error(cat("input '", names_[input], "': ", destination.size(), " bytes to fill, its rows are ",
                             targetBytes * rows.rowsPerPiece));
  uint64_t first = sample + static_cast<uint64_t>(piece) * rows.rowsPerPiece;
  if (rows.column) {
    const uint64_t row = first - firstSample_;
    return pipe_->read(*rows.column, row, rows.rowsPerPiece, [&](DataType type, const std::byte* from, uint64_t i) {
      Status status = take(rows, type, from, destination.data() + i * targetBytes);
      return status.ok()
                 ? status
                 : Status::error(cat("input '", names_[input], "': row ", row + i, " of the pipe: ", status.message()));
    });
  }
  std::optional<Permutation> permutation;
  uint64_t epoch = 0;
  auto rowAt = [&](uint64_t i) {
    uint64_t row = rows.whole                           ? 0
                   : reader_ == DataReader::kEvaluation ? std::min(first + i, rows_ - 1)
                                                        : (first + i) % rows_;
    if (shuffleSeed_) {
      if (uint64_t now = (first + i) / rows_; !permutation || now != epoch) {
        epoch = now;
        permutation.emplace(rows_, mixBits(mixBits(static_cast<uint64_t>(*shuffleSeed_)) + epoch));
      }
      row = (*permutation)(row);
    }
    return row;
  };
  FoundSize found;
  const uint64_t count = rows.rowsPerPiece;
  for (uint64_t i = 0, next = count > 0 ? rowAt(0) : 0; i < count;) {
    const uint64_t row = next, begin = i;
    const Piece& piece = rows.pieceOf(row);
    // As many rows as follow each other in the file.
    while (++i < count && (next = rowAt(i)) == row + i - begin && next < piece.firstRow + piece.rows) continue;
    Status status =
        readRows(rows, piece, row - piece.firstRow, i - begin, destination.data() + begin * targetBytes, found);
    if (!status.ok()) return Status::error(cat("input '", names_[input], "': ", status.message()));
  }
  return {};
}

Status DataSource::readRows(const InputRows& rows, const Piece& piece, uint64_t row, uint64_t count, std::byte* to,
                            FoundSize& found) const {
  const DataFile& file = files_[piece.file];
  const uint64_t rowBytes = rows.rowElements * bytesOf(rows.type),
                 targetBytes = rows.rowElements * bytesOf(rows.target);
  auto inRow = [&](uint64_t which, const std::string& why) {
    return Status::error(cat(file.path(), ", row ", which, ": ", why));
  };
  auto shorter = [&](uint64_t which, uint64_t size) {
    return inRow(which, cat("the file has ", size, " bytes, and had ", file.size(),
                            " when the run began: it has become shorter; leave data files as they are during a run"));
  };
  if (rowBytes == 0) return {};
  const bool asTheyAre = rows.type == rows.target && rows.type != DataType::Bool;
  const uint64_t most = asTheyAre ? count : std::max<uint64_t>(kScratchBytes / rowBytes, 1);
  thread_local std::vector<std::byte> scratch;  // holds a row at least
  for (uint64_t done = 0; done < count;) {
    const uint64_t now = std::min(most, count - done), at = piece.offset + (row + done) * rowBytes;
    std::byte* const target = to + done * targetBytes;
    const std::byte* from = target;
    if (!file.held().empty()) {
      from = file.held().data() + at;
      if (found.file != &file) found = {&file, file.sizeNow()};
      if (found.size < at + now * rowBytes)
        return shorter(row + done + (std::max(found.size, at) - at) / rowBytes, found.size);
    } else {
      if (!asTheyAre) {
        scratch.resize(std::max<size_t>(scratch.size(), now * rowBytes));
        from = scratch.data();
      }
      std::byte* const buffer = asTheyAre ? target : scratch.data();
      Expected<size_t> got = file.read(at, {buffer, now * rowBytes});
      if (!got.ok()) return inRow(row + done, got.status().message());
      if (*got < now * rowBytes) return shorter(row + done + *got / rowBytes, file.sizeNow());
    }
    for (uint64_t i = 0; i < now; ++i)
      if (Status status = take(rows, rows.type, from + i * rowBytes, target + i * targetBytes); !status.ok())
        return inRow(row + done + i, status.message());
    done += now;
  }
  return {};
}

Status DataSource::checkClasses(const std::function<bool()>& enough) const {
  std::vector<std::byte> buffer;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const InputRows& rows = inputs_[i];
    if (rows.classes == 0 || rows.rowElements == 0) continue;
    const uint64_t rowBytes = rows.rowElements * bytesOf(rows.target),
                   most = std::max<uint64_t>(kScratchBytes / rowBytes, 1);
    buffer.resize(most * rowBytes);
    FoundSize found;
    for (const Piece& piece : rows.pieces)
      for (uint64_t row = 0; row < piece.rows && !enough(); row += most)
        if (Status status = readRows(rows, piece, row, std::min(most, piece.rows - row), buffer.data(), found);
            !status.ok())
          return Status::error(cat(option(), ": input '", names_[i], "': ", status.message()));
  }
  return {};
}

Status DataSource::holdSmallFiles() {
  std::vector<bool> read(files_.size());
  for (const InputRows& rows : inputs_)
    for (const Piece& piece : rows.pieces) read[piece.file] = true;
  uint64_t left = kHeldBytes;
  for (size_t i = 0; i < files_.size(); ++i) {
    if (!read[i] || files_[i].size() > left) continue;
    if (Status status = files_[i].hold(); !status.ok()) return Status::error(cat(option(), ": ", status.message()));
    left -= files_[i].size();
  }
  return {};
}

}  // namespace sheaf::io
