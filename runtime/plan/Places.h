// Which bytes of their buffers a plan's instructions read and write, exactly: with the gaps that strided calls leave,
// and by rank where a rank has a part of its own.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/plan/ByteMap.h"
#include "runtime/plan/CallSchema.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::plan {

// Bytes of a space (below) whose addresses are row * period + column: `rows` rows from `row` on, and of each `width`
// bytes from `column` on. In a space without a period all bytes are in row 0.
struct Block {
  uint64_t row, rows, column, width;
};

// What is known of the bytes of a space. Pieces are cut where visited blocks begin and end, in rows and in columns, so
// that strided accesses of one period cut few, however many rows they have.
template <typename T>
class BlockMap {
 public:
  // Calls visit(block, value) for the pieces of `block` in order of rows, then columns; it may change the value.
  template <typename Visit>
  void visit(const Block& block, Visit visit) {
    rows_.visit(block.row, block.row + block.rows, [&](uint64_t row, uint64_t rowEnd, ByteMap<T>& columns) {
      columns.visit(block.column, block.column + block.width, [&](uint64_t column, uint64_t columnEnd, T& value) {
        visit(Block{row, rowEnd - row, column, columnEnd - column}, value);
      });
    });
  }
  template <typename Visit>
  void forEach(Visit visit) const {
    rows_.forEach([&](uint64_t row, uint64_t rowEnd, const ByteMap<T>& columns) {
      columns.forEach([&](uint64_t column, uint64_t columnEnd, const T& value) {
        visit(Block{row, rowEnd - row, column, columnEnd - column}, value);
      });
    });
  }

 private:
  ByteMap<ByteMap<T>> rows_;
};

// The most pieces of an operand that do not repeat with its buffer's period.
inline constexpr int64_t kMostPieces = 4096;

// Which part of a buffer an operand lies in.
enum class Share : uint8_t {
  kNone,   // the same bytes on every rank
  kPiece,  // the rank's piece: the shards of all ranks with its local number, in a buffer that also has shards
  kOwn,    // the rank's own part
};

// Bytes that an operand accesses in its buffer.
struct Place {
  const Operand* operand;
  uint32_t buffer;
  bool reads, writes, scratch;
  Share part;                   // kOwn: row i of the blocks is what the rank of index i accesses
  bool misplaced;               // it divides the buffer otherwise than another operand; OperandOverlap refuses the plan
  std::vector<Block> accessed;  // all bytes of the operand
  std::vector<Block> written;   // those of them that it writes, if it writes
  bool scattered;               // too many pieces to list: blocks are incomplete, and OperandOverlap refuses the plan
};

class Places {
 public:
  // For plans whose operands lie in their buffers. The plan must outlive the object.
  explicit Places(const Plan& plan);

  const Plan& plan() const { return plan_; }

  // The operands of an instruction of the plan, in order.
  const std::vector<Place>& of(const Instruction& instruction) const;

  // A buffer has one space, or two if any operand's address depends on the rank: the first tells what a rank finds in
  // other ranks' parts, the second what it finds in its own. An operand with one address for all ranks is in both; a
  // rank's part only in the second. A buffer with shards and with pieces of several shards has three: what a rank finds
  // in other pieces, in others' shards of its own piece, and in its own shard. A piece is in the latter two.
  struct Spaces {
    size_t begin, end;
  };
  size_t spaces() const { return spaces_; }
  Spaces spacesOf(uint32_t buffer) const;
  Spaces spacesOf(const Place& place) const;

  // Bytes [begin, end) of a buffer in its spaces.
  std::vector<Block> blocks(uint32_t buffer, uint64_t begin, uint64_t end) const;
  // The first byte of a block in its buffer.
  uint64_t firstByte(uint32_t buffer, const Block& block) const {
    return block.row * buffers_[buffer].period + block.column;
  }
  uint64_t period(uint32_t buffer) const { return buffers_[buffer].period; }
  // The axis whose index gives a rank its own part.
  Axis axis(uint32_t buffer) const { return buffers_[buffer].axis; }

  // "operand 4 (c)"
  static std::string name(const Instruction& instruction, size_t operand);

  // Whether no byte is in both; blocks of one buffer.
  static bool disjoint(const std::vector<Block>& a, const std::vector<Block>& b);

 private:
  struct BufferSpaces {
    size_t first = 0;
    bool rankParts = false;  // some operand's address depends on the rank
    bool pieces = false;     // some operand is a piece of several shards
    Axis axis = WORLD;       // of the smallest parts
    uint64_t period = 0;     // 0: none
  };
  static size_t spacesOf(const BufferSpaces& buffer) { return 1 + buffer.rankParts + buffer.pieces; }
  bool isMoving(const Operand& operand) const;
  using Written = std::vector<Runs>;  // by operand

  Written writtenBy(const Instruction& instruction) const;
  void findPeriods(const std::vector<std::pair<const Instruction*, Written>>& all);
  std::vector<Place> placesOf(const Instruction& instruction, const Written& written) const;
  void addRuns(uint32_t buffer, uint64_t begin, const Runs& runs, size_t dimension, uint64_t end,
               std::vector<Block>& list) const;
  void addRows(uint32_t buffer, uint64_t begin, uint64_t count, uint64_t width, uint64_t end,
               std::vector<Block>& list) const;

  const Plan& plan_;
  std::vector<BufferSpaces> buffers_;
  size_t spaces_ = 0;
  std::unordered_map<const Instruction*, std::vector<Place>> places_;
};

}  // namespace sheaf::plan
