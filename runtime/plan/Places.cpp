#include "runtime/plan/Places.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "runtime/base/Text.h"
#include "runtime/plan/Images.h"
#include "runtime/plan/Library.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Unrolled.h"

namespace sheaf::plan {
namespace {

// The same bytes with as few dimensions as possible, the outermost first.
Runs simplifiedRuns(Runs runs) {
  std::erase_if(runs.dimensions, [](const Runs::Dimension& d) { return d.count <= 1 || d.step <= 0; });
  std::stable_sort(runs.dimensions.begin(), runs.dimensions.end(),
                   [](const Runs::Dimension& a, const Runs::Dimension& b) { return a.step > b.step; });
  std::vector<Runs::Dimension> merged;
  for (const Runs::Dimension& d : runs.dimensions) {
    if (!merged.empty() && merged.back().step == saturatingMultiply(d.count, d.step))
      merged.back() = {saturatingMultiply(merged.back().count, d.count), d.step};
    else
      merged.push_back(d);
  }
  while (!merged.empty() && merged.back().step <= runs.width) {
    runs.width = saturatingAdd(saturatingMultiply(merged.back().count - 1, merged.back().step), runs.width);
    merged.pop_back();
  }
  runs.dimensions = std::move(merged);
  return runs;
}

// Runs that do not repeat with the period, each of which becomes a piece of its own.
int64_t pieces(const Runs& runs, uint64_t period) {
  int64_t count = 1;
  for (const Runs::Dimension& d : runs.dimensions)
    if (static_cast<uint64_t>(d.step) != period) count = saturatingMultiply(count, d.count);
  return count;
}

bool meet(const Block& a, const Block& b) {
  return a.row < b.row + b.rows && b.row < a.row + a.rows && a.column < b.column + b.width &&
         b.column < a.column + a.width;
}

}  // namespace

Places::Places(const Plan& plan) : plan_(plan), buffers_(static_cast<size_t>(plan.buffers_size())) {
  std::vector<std::pair<const Instruction*, Written>> all;
  forEachInstruction(plan, [&](const Instruction& instruction) {
    if (!instruction.has_record() && !instruction.has_wait()) all.emplace_back(&instruction, writtenBy(instruction));
  });
  findPeriods(all);
  for (BufferSpaces& buffer : buffers_) {
    buffer.first = spaces_;
    spaces_ += spacesOf(buffer);
  }
  places_.reserve(all.size());
  for (const auto& [instruction, written] : all) places_.emplace(instruction, placesOf(*instruction, written));
}

const std::vector<Place>& Places::of(const Instruction& instruction) const {
  static const std::vector<Place> kNone;
  auto found = places_.find(&instruction);
  return found == places_.end() ? kNone : found->second;
}

Places::Spaces Places::spacesOf(uint32_t buffer) const {
  const BufferSpaces& b = buffers_[buffer];
  return {b.first, b.first + spacesOf(b)};
}

Places::Spaces Places::spacesOf(const Place& place) const {
  Spaces spaces = spacesOf(place.buffer);
  if (place.part == Share::kOwn) spaces.begin = spaces.end - 1;
  if (place.part == Share::kPiece) spaces.begin = spaces.end - 2;
  return spaces;
}

// Whether the address depends on the rank.
bool Places::isMoving(const Operand& operand) const {
  return operand.shard_stride() > 0 && ranksOn(plan_, operand.axis()) > 1;
}

// Empty: all operands are written from end to end.
Places::Written Places::writtenBy(const Instruction& instruction) const {
  Written written;
  if (const uint32_t kernel = instruction.kernel().kernel();
      instruction.has_kernel() && kernel < static_cast<uint32_t>(plan_.kernels_size()))
    for (uint64_t bytes : plan_.kernels(static_cast<int>(kernel)).operand_bytes())
      written.push_back({{}, static_cast<int64_t>(bytes)});
  if (!instruction.has_call()) return written;
  const Expected<AnyCall> call = parseCall(instruction.call());
  if (!call.ok()) return written;
  for (Runs& runs : writtenRuns(*call)) written.push_back(simplifiedRuns(std::move(runs)));
  return written;
}

// The stride of the ranks' parts, or else the step that most runs have in common. Shards divide pieces.
// Images are divided alike, so that a transfer takes each part to the same part.
void Places::findPeriods(const std::vector<std::pair<const Instruction*, Written>>& all) {
  const std::vector<uint32_t> images = imageGroups(plan_);
  std::vector<std::map<int64_t, int64_t>> repeats(buffers_.size());  // by buffer and step
  std::vector<std::map<Axis, uint64_t>> divisions(buffers_.size());  // the largest stride, by buffer and axis
  for (const auto& [instruction, written] : all) {
    size_t i = 0;
    forEachOperand(*instruction, [&, &written = written](const Operand& operand) {
      const uint32_t image = images[operand.buffer()];
      BufferSpaces& buffer = buffers_[image];
      if (isMoving(operand)) {
        if (buffer.rankParts && operand.axis() != buffer.axis) buffer.pieces = true;
        if (!buffer.rankParts || operand.axis() == WORLD) buffer.axis = operand.axis();
        buffer.rankParts = true;
        divisions[image][operand.axis()] = std::max(divisions[image][operand.axis()], operand.shard_stride());
      }
      if (i < written.size() && operand.access() != READ)
        for (const Runs::Dimension& d : written[i].dimensions) {
          int64_t& sum = repeats[image][d.step];
          sum = saturatingAdd(sum, d.count);
        }
      ++i;
    });
  }
  for (size_t b = 0; b < buffers_.size(); ++b) {
    int64_t most = 0;
    if (buffers_[b].rankParts) buffers_[b].period = divisions[b][buffers_[b].axis];
    for (auto [step, count] : repeats[b])
      if (!buffers_[b].rankParts && count > most) {
        most = count;
        buffers_[b].period = static_cast<uint64_t>(step);
      }
  }
  for (size_t b = 0; b < buffers_.size(); ++b) buffers_[b] = buffers_[images[b]];
}

std::vector<Place> Places::placesOf(const Instruction& instruction, const Written& written) const {
  std::vector<Place> list;
  forEachOperand(instruction, [&](const Operand& operand) {
    const BufferSpaces& buffer = buffers_[operand.buffer()];
    const uint64_t parts = static_cast<uint64_t>(ranksOn(plan_, buffer.axis));
    const uint64_t nodes = static_cast<uint64_t>(nodesOf(plan_));
    Share part = Share::kNone;
    bool misplaced = false;
    if (isMoving(operand)) {
      // A piece is all shards of some ranks, so that all its rows are alike.
      const bool piece = operand.axis() != buffer.axis;
      part = piece ? Share::kPiece : Share::kOwn;
      misplaced = piece
                      ? operand.axis() != NODE || buffer.axis != WORLD || operand.offset() != 0 ||
                            operand.bytes() != operand.shard_stride() || operand.shard_stride() != buffer.period * nodes
                      : operand.shard_stride() != buffer.period;
    }
    Place place{&operand,
                operand.buffer(),
                operand.access() != WRITE,
                operand.access() != READ,
                isScratch(instruction, operand),
                part,
                misplaced,
                {},
                {},
                false};
    const uint64_t begin = operand.offset(), end = begin + operand.bytes();
    auto everyRank = [&](const Runs& runs, std::vector<Block>& blocks) {
      // Parts of the ranks are `stride` apart: rows of their buffer, unless it has another period.
      if (misplaced || (part == Share::kOwn && end > operand.shard_stride())) {
        place.scattered = true;
        return;
      }
      if (part == Share::kPiece) {
        // Written from end to end, or nothing is known of it.
        const bool dense = runs.dimensions.empty() && static_cast<uint64_t>(runs.width) >= operand.bytes();
        place.scattered |= !dense;
        if (dense) blocks.push_back({0, parts, 0, buffer.period});
        return;
      }
      addRuns(operand.buffer(), begin, runs, 0, end, blocks);
      if (part == Share::kOwn)
        for (Block& block : blocks) block.rows = parts;
    };
    const Runs dense{{}, static_cast<int64_t>(operand.bytes())};
    everyRank(dense, place.accessed);
    if (place.writes) {
      const Runs& runs = list.size() < written.size() && !place.scratch ? written[list.size()] : dense;
      if (pieces(runs, part == Share::kOwn ? 0 : buffer.period) > kMostPieces)
        place.scattered = true;
      else
        everyRank(runs, place.written);
    }
    list.push_back(std::move(place));
  });
  return list;
}

// Adds what lies before `end` of the runs that start at `begin`, from dimension `dimension` on.
void Places::addRuns(uint32_t buffer, uint64_t begin, const Runs& runs, size_t dimension, uint64_t end,
                     std::vector<Block>& list) const {
  const uint64_t width = static_cast<uint64_t>(runs.width);
  if (dimension == runs.dimensions.size()) return addRows(buffer, begin, 1, width, end, list);
  const uint64_t count = static_cast<uint64_t>(runs.dimensions[dimension].count);
  const uint64_t step = static_cast<uint64_t>(runs.dimensions[dimension].step);
  if (step == buffers_[buffer].period) {
    // The dimensions inside are offsets of such rows.
    Runs inside{{runs.dimensions.begin() + static_cast<int64_t>(dimension) + 1, runs.dimensions.end()}, runs.width};
    std::vector<uint64_t> starts{begin};
    for (const Runs::Dimension& d : inside.dimensions) {
      std::vector<uint64_t> next;
      for (uint64_t start : starts)
        for (int64_t i = 0; i < d.count; ++i) next.push_back(start + static_cast<uint64_t>(i * d.step));
      starts = std::move(next);
    }
    for (uint64_t start : starts) addRows(buffer, start, count, width, end, list);
    return;
  }
  for (uint64_t i = 0; i < count; ++i) addRuns(buffer, begin + i * step, runs, dimension + 1, end, list);
}

// Adds what lies before `end` of `count` runs of `width` bytes that start a period apart.
void Places::addRows(uint32_t buffer, uint64_t begin, uint64_t count, uint64_t width, uint64_t end,
                     std::vector<Block>& list) const {
  const uint64_t period = buffers_[buffer].period;
  if (begin >= end || count == 0) return;
  if (period > 0) count = std::min(count, (end - begin - 1) / period + 1);
  const uint64_t last = end - (begin + (count - 1) * period);  // bytes that the last one may have
  if (period == 0) {
    list.push_back({0, 1, begin, std::min(width, last)});
    return;
  }
  if (width > last && count > 1) {
    addRows(buffer, begin, count - 1, width, end, list);
    return addRows(buffer, begin + (count - 1) * period, 1, width, end, list);
  }
  width = std::min(width, last);
  const uint64_t row = begin / period, column = begin % period;
  if (count > 1 || column + width <= period) {
    const uint64_t here = std::min(width, period - column);
    list.push_back({row, count, column, here});
    if (width > here) list.push_back({row + 1, count, 0, width - here});
    return;
  }
  // One run over several rows: the end of the first, whole rows, the beginning of the last.
  uint64_t left = width, next = row;
  if (column > 0) {
    list.push_back({next++, 1, column, period - column});
    left -= period - column;
  }
  if (left >= period) list.push_back({next, left / period, 0, period});
  if (left % period > 0) list.push_back({next + left / period, 1, 0, left % period});
}

std::vector<Block> Places::blocks(uint32_t buffer, uint64_t begin, uint64_t end) const {
  std::vector<Block> list;
  addRows(buffer, begin, 1, end - begin, end, list);
  return list;
}

std::string Places::name(const Instruction& instruction, size_t operand) {
  std::string_view role;
  if (instruction.has_call()) {
    if (const Expected<AnyCall> call = parseCall(instruction.call()); call.ok()) {
      const std::vector<OperandNeed> needs = operandsOf(*call);
      role = operand < needs.size() ? needs[operand].name : "scratch";
    }
  } else if (instruction.has_collective() || instruction.has_transfer()) {
    role = operand == 0 ? "source" : "destination";
  }
  return role.empty() ? cat("operand ", operand) : cat("operand ", operand, " (", role, ")");
}

bool Places::disjoint(const std::vector<Block>& a, const std::vector<Block>& b) {
  for (const Block& x : a)
    for (const Block& y : b)
      if (meet(x, y)) return false;
  return true;
}

}  // namespace sheaf::plan
