#include "runtime/plan/leaves/KernelProgram.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>

#include "runtime/base/Text.h"
#include "runtime/plan/Saturating.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Words.h"

namespace sheaf::plan {
namespace {

constexpr std::string_view kKinds[] = {"operand", "map", "spread", "same", "splat", "whole", "result"};
// More than any kernel has; what an untrusted plan may cost.
constexpr int kMostLines = 4096;
constexpr int64_t kMostLeaves = int64_t{1} << 20;

// Reads one line word by word.
class LineParser {
 public:
  explicit LineParser(const std::string& text) : words_(text) { next(); }

  Expected<ProgramLine> run() {
    const auto* kind = std::find(std::begin(kKinds), std::end(kKinds), word_);
    if (kind == std::end(kKinds)) return error("begins with no kind of line");
    line_.kind = static_cast<ProgramLine::Kind>(kind - kKinds);
    next();
    const bool placed = line_.kind == ProgramLine::kOperand || line_.kind == ProgramLine::kResult;
    if (!placed) line_.name = take();
    const std::optional<ElementType> type = valueOf<ElementType>(word_);
    if (!type) return error(cat("has no element type but '", word_, "'"));
    line_.type = *type;
    next();
    if (!shape(take())) return error("has no shape such as 4x256");
    int64_t outer = 0;
    if (placed && accept("leaves")) {
      if (!number(line_.leaves, 1, kMostLeaves) || !accept("outer") || !number(outer, 1, kMaxSize))
        return error("has no number of leaves and of pieces of a leaf");
      line_.outer = outer;
      if (line_.elements() % outer != 0) return error("has pieces of a leaf that do not divide its elements");
    }
    if (placed && accept("pitch") && !number(line_.pitch, line_.columns(), kMaxSize))
      return error("has a pitch that is shorter than a row");
    if (!placed && accept("with") && !hash(take())) return error("has no hash of 16 hexadecimal digits");
    if (accept("of"))
      while (!word_.empty()) {
        int64_t index = 0;
        if (!number(index, 0, kMostLines)) return error("depends on what is not a line's number");
        line_.of.push_back(static_cast<uint32_t>(index));
      }
    if (!word_.empty()) return error(cat("has an unexpected '", word_, "'"));
    return line_;
  }

 private:
  static constexpr int64_t kMaxSize = int64_t{1} << 40;

  void next() {
    word_.clear();
    words_ >> word_;
  }
  std::string take() {
    std::string word = word_;
    next();
    return word;
  }
  bool accept(std::string_view word) {
    if (word_ != word) return false;
    next();
    return true;
  }
  bool number(int64_t& value, int64_t least, int64_t most) {
    return parseInteger(take(), value) && value >= least && value <= most;
  }
  bool shape(std::string text) {
    if (text == "scalar") return true;
    std::replace(text.begin(), text.end(), 'x', ' ');
    std::istringstream sizes(text);
    for (std::string size; sizes >> size;) {
      int64_t value = 0;
      if (!parseInteger(size, value) || value < 1) return false;
      line_.shape.push_back(value);
    }
    return !line_.shape.empty() && line_.shape.size() <= 16 && elementCount(line_.shape).has_value();
  }
  bool hash(const std::string& text) {
    const char* end = text.data() + text.size();
    return text.size() == 16 && std::from_chars(text.data(), end, line_.attributes, 16).ptr == end;
  }
  static Status error(std::string what) { return Status::error(std::move(what)); }

  std::istringstream words_;
  std::string word_;
  ProgramLine line_;
};

// Whether a line fits those before it.
Status checkLine(const std::vector<ProgramLine>& before, const ProgramLine& line) {
  const bool wasResult = !before.empty() && before.back().kind == ProgramLine::kResult;
  const bool wasOp = !before.empty() && before.back().kind != ProgramLine::kOperand;
  if (line.kind == ProgramLine::kOperand ? wasOp : line.kind != ProgramLine::kResult && wasResult)
    return Status::error("is out of order: operands come first and results last");
  const size_t least = line.kind == ProgramLine::kOperand || line.kind == ProgramLine::kSplat ? 0 : 1;
  const bool one =
      line.kind == ProgramLine::kSpread || line.kind == ProgramLine::kSame || line.kind == ProgramLine::kResult;
  if (line.kind != ProgramLine::kWhole && (line.of.size() < least || (least == 0 && !line.of.empty())))
    return Status::error("depends on too many or too few lines");
  if (one && line.of.size() != 1) return Status::error("depends on other than one line");
  for (uint32_t i : line.of) {
    if (i >= before.size() || before[i].kind == ProgramLine::kResult)
      return Status::error(cat("depends on line ", i, ", which is not an operand or op before it"));
    const bool same = line.kind != ProgramLine::kWhole && line.kind != ProgramLine::kSpread;
    if (same && before[i].elements() != line.elements())
      return Status::error(cat("has ", line.elements(), " elements for the ", before[i].elements(), " of line ", i));
  }
  return {};
}

uint64_t bytesOf(const ProgramLine& line) {
  const int64_t leaves = std::max<int64_t>(line.leaves, 1), width = static_cast<int64_t>(elementBytes(line.type));
  const int64_t elements =
      line.pitch ? saturatingMultiply(line.elements() / line.columns(), line.pitch) : line.elements();
  return static_cast<uint64_t>(saturatingMultiply(saturatingMultiply(elements, leaves), width));
}

}  // namespace

int64_t ProgramLine::elements() const {
  return static_cast<int64_t>(elementCount(shape).value_or(0));
}

std::string ProgramLine::text() const {
  std::string text(kKinds[kind]);
  if (!name.empty()) text += cat(" ", name);
  text += cat(" ", word(type), " ");
  for (size_t i = 0; i < shape.size(); ++i) text += cat(i ? "x" : "", shape[i]);
  if (shape.empty()) text += "scalar";
  if (leaves) text += cat(" leaves ", leaves, " outer ", outer);
  if (pitch) text += cat(" pitch ", pitch);
  if (attributes) text += cat(" with ", hexText(attributes));
  for (size_t i = 0; i < of.size(); ++i) text += cat(i ? " " : " of ", of[i]);
  return text;
}

Expected<KernelProgram> programOf(const Kernel& kernel) {
  KernelProgram program;
  if (kernel.ops_size() > kMostLines)
    return Status::error(cat("its program has ", kernel.ops_size(), " lines, more than ", kMostLines));
  int operand = 0;
  for (int i = 0; i < kernel.ops_size(); ++i) {
    auto wrong = [&](const std::string& what) {
      return Status::error(cat("line ", i, " of its program ('", kernel.ops(i).substr(0, 80), "') ", what));
    };
    Expected<ProgramLine> line = LineParser(kernel.ops(i)).run();
    if (!line.ok()) return wrong(line.status().message());
    if (Status fits = checkLine(program.lines, *line); !fits.ok()) return wrong(fits.message());
    if (line->leaves) {
      if (program.leaves > 1 && line->leaves > 1 && program.leaves != line->leaves)
        return wrong(cat("has ", line->leaves, " leaves, another ", program.leaves));
      program.leaves = std::max(program.leaves, line->leaves);
    }
    if (line->kind == ProgramLine::kOperand || line->kind == ProgramLine::kResult) {
      if (operand >= kernel.operand_bytes_size()) return wrong("is of an operand that the kernel has not");
      if (bytesOf(*line) != kernel.operand_bytes(operand))
        return wrong(cat("has ", bytesOf(*line), " bytes, operand ", operand, " has ", kernel.operand_bytes(operand)));
      if (kernel.operand_access(operand) == (line->kind == ProgramLine::kOperand ? WRITE : READ))
        return wrong(cat("is not what the kernel does with operand ", operand));
      ++operand;
    }
    program.lines.push_back(std::move(*line));
  }
  if (kernel.ops_size() > 0 && operand != kernel.operand_bytes_size())
    return Status::error(cat("its program has ", operand, " of its ", kernel.operand_bytes_size(), " operands"));
  return program;
}

}  // namespace sheaf::plan
