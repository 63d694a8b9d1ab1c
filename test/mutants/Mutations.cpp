#include "test/mutants/Mutations.h"

#include <algorithm>
#include <map>
#include <set>

#include "runtime/base/Text.h"
#include "runtime/plan/MicroBatches.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Words.h"

namespace sheaf::mutants {
namespace {

using plan::Buffer, plan::Instruction, plan::kAlignment, plan::Operand, plan::Plan;
using List = google::protobuf::RepeatedPtrField<Instruction>;

// Prologue, body, epilogue, evaluation, and then the parts of the step.
constexpr int kSections = 4;

const List& section(const Plan& plan, int s) {
  if (s >= kSections) return plan.parts(s - kSections).instructions();
  return s == 0 ? plan.prologue() : s == 1 ? plan.body() : s == 2 ? plan.epilogue() : plan.evaluation();
}
List& section(Plan& plan, int s) {
  if (s >= kSections) return *plan.mutable_parts(s - kSections)->mutable_instructions();
  return *(s == 0   ? plan.mutable_prologue()
           : s == 1 ? plan.mutable_body()
           : s == 2 ? plan.mutable_epilogue()
                    : plan.mutable_evaluation());
}

std::string name(const Plan& plan, int s, int i) {
  const char* const names[] = {"prologue", "body", "epilogue", "evaluation"};
  const std::string of = s < kSections ? names[s] : plan.parts(s - kSections).name();
  return plan::describe(plan, of, i, section(plan, s)[i]);
}

template <typename Visit>
void forAll(const Plan& plan, Visit visit) {
  for (int s = 0; s < kSections + plan.parts_size(); ++s)
    for (int i = 0; i < section(plan, s).size(); ++i) visit(s, i, section(plan, s)[i]);
}

Mutation drop(const Plan& plan, int s, int i) {
  return {cat("without ", name(plan, s, i)), [s, i](Plan& p) { section(p, s).DeleteSubrange(i, 1); }};
}

Mutation swapped(const Plan& plan, int s, int i, int j) {
  return {cat(name(plan, s, i), " and ", name(plan, s, j), " swapped"),
          [s, i, j](Plan& p) { section(p, s).SwapElements(i, j); }};
}

bool isEvent(const Instruction& instruction) {
  return instruction.has_record() || instruction.has_wait();
}

std::vector<Mutation> deletedWaits(const Plan& plan) {
  std::vector<Mutation> list;
  forAll(plan, [&](int s, int i, const Instruction& instruction) {
    if (instruction.has_wait()) list.push_back(drop(plan, s, i));
  });
  return list;
}

std::vector<Mutation> deletedRecords(const Plan& plan) {
  std::vector<Mutation> list;
  forAll(plan, [&](int s, int i, const Instruction& instruction) {
    if (instruction.has_record()) list.push_back(drop(plan, s, i));
  });
  return list;
}

// The next instruction of the same stream that is not an event, from i on in steps of `direction`; -1: none.
int neighbour(const Plan& plan, int s, int i, int direction) {
  const List& list = section(plan, s);
  uint32_t stream = list[i].stream();
  for (i += direction; i >= 0 && i < list.size(); i += direction)
    if (list[i].stream() == stream && !isEvent(list[i])) return i;
  return -1;
}

// Moves instruction i to position j; those between close up.
Mutation moved(const Plan& plan, int s, int i, int j) {
  return {cat(name(plan, s, i), j < i ? " before " : " after ", name(plan, s, j)), [s, i, j](Plan& p) {
            int step = j < i ? -1 : 1;
            for (int at = i; at != j; at += step) section(p, s).SwapElements(at, at + step);
          }};
}

std::vector<Mutation> earlyRecords(const Plan& plan) {
  std::vector<Mutation> list;
  forAll(plan, [&](int s, int i, const Instruction& instruction) {
    if (int producer = neighbour(plan, s, i, -1); instruction.has_record() && producer >= 0)
      list.push_back(moved(plan, s, i, producer));
  });
  return list;
}

std::vector<Mutation> lateWaits(const Plan& plan) {
  std::vector<Mutation> list;
  forAll(plan, [&](int s, int i, const Instruction& instruction) {
    if (int consumer = neighbour(plan, s, i, 1); instruction.has_wait() && consumer >= 0)
      list.push_back(moved(plan, s, i, consumer));
  });
  return list;
}

std::vector<Mutation> otherStreams(const Plan& plan) {
  std::vector<Mutation> list;
  forAll(plan, [&](int s, int i, const Instruction& instruction) {
    for (uint32_t stream = 0; stream < static_cast<uint32_t>(plan.streams_size()); ++stream)
      if (stream != instruction.stream())
        list.push_back({cat(name(plan, s, i), " on stream ", plan.streams(static_cast<int>(stream))),
                        [s, i, stream](Plan& p) { section(p, s)[i].set_stream(stream); }});
  });
  return list;
}

// So that a mutant is not refused for what it declares.
void restatePeaks(Plan& p) {
  p.mutable_memory()->set_peak_bytes(plan::arenaTop(p, Buffer::DEVICE));
  for (plan::SpaceMemory& memory : *p.mutable_memory()->mutable_spaces())
    memory.set_peak_bytes(plan::arenaTop(p, memory.space()));
}

Mutation placedAt(const Plan& plan, int b, uint64_t offset, const std::string& where) {
  return {cat("buffer '", plan.buffers(b).name(), "' ", where), [b, offset](Plan& p) {
            p.mutable_buffers(b)->set_offset(offset);
            restatePeaks(p);
          }};
}

std::vector<Mutation> movedBuffers(const Plan& plan) {
  std::vector<Mutation> list;
  for (int b = 0; b < plan.buffers_size(); ++b) {
    uint64_t at = plan.buffers(b).offset();
    const uint64_t alignment = plan.buffers(b).space() == Buffer::FILE ? plan::kFileAlignment : kAlignment;
    list.push_back(placedAt(plan, b, at + alignment, "moved up"));
    if (at >= alignment) list.push_back(placedAt(plan, b, at - alignment, "moved down"));
  }
  return list;
}

// First and last instruction of the step, or of the evaluation after it, that accesses a buffer.
struct Life {
  int first = INT32_MAX, last = -1;
};

std::vector<Life> lives(const Plan& plan) {
  std::vector<Life> list(static_cast<size_t>(plan.buffers_size()));
  int at = 0;
  auto add = [&](const Instruction& instruction) {
    plan::forEachOperand(instruction, [&](const Operand& o) {
      list[o.buffer()].first = std::min(list[o.buffer()].first, at);
      list[o.buffer()].last = at;
    });
    ++at;
  };
  for (const Instruction* instruction : plan::stepInstructions(plan)) add(*instruction);
  for (const Instruction& instruction : plan.evaluation()) add(instruction);
  return list;
}

// Two buffers whose lives overlap share bytes: one lies on the other, or its end on the other's beginning. Many others
// begin at the same byte; each place is tried once.
std::vector<Mutation> sharedBytes(const Plan& plan) {
  std::vector<Mutation> list;
  std::vector<Life> life = lives(plan);
  for (int b = 0; b < plan.buffers_size(); ++b) {
    const Buffer& buffer = plan.buffers(b);
    std::set<uint64_t> tried{buffer.offset()};
    uint64_t before = (buffer.bytes() - 1) / kAlignment * kAlignment;
    for (int other = 0; other < plan.buffers_size(); ++other) {
      if (b == other || life[b].first > life[other].last || life[other].first > life[b].last) continue;
      const Buffer& onto = plan.buffers(other);
      if (onto.space() != buffer.space()) continue;
      std::string where = cat("of '", onto.name(), "', whose life overlaps its own");
      if (tried.insert(onto.offset()).second) list.push_back(placedAt(plan, b, onto.offset(), "on the bytes " + where));
      if (onto.offset() >= before && tried.insert(onto.offset() - before).second)
        list.push_back(placedAt(plan, b, onto.offset() - before, "with its end on the first bytes " + where));
    }
  }
  return list;
}

std::vector<Mutation> swappedCollectives(const Plan& plan) {
  std::vector<Mutation> list;
  int section = -1, previous = 0;
  forAll(plan, [&](int s, int i, const Instruction& instruction) {
    if (!instruction.has_collective()) return;
    if (section == s) list.push_back(swapped(plan, s, previous, i));
    section = s;
    previous = i;
  });
  return list;
}

bool conflict(const Plan& plan, const Instruction& a, const Instruction& b) {
  bool found = false;
  auto range = [&](const Operand& o) {
    uint64_t begin = plan::addressOf(plan.buffers(static_cast<int>(o.buffer()))) + o.offset();
    return std::pair(begin, begin + o.bytes() + plan::mostRankOffset(plan, o));
  };
  plan::forEachOperand(a, [&](const Operand& x) {
    plan::forEachOperand(b, [&](const Operand& y) {
      auto [begin, end] = range(x);
      auto [from, to] = range(y);
      found |= (x.access() != plan::READ || y.access() != plan::READ) && begin < to && from < end;
    });
  });
  return found;
}

std::vector<Mutation> swappedNeighbours(const Plan& plan) {
  std::vector<Mutation> list;
  int section = -1;
  std::map<uint32_t, int> previous;  // of each stream
  forAll(plan, [&](int s, int i, const Instruction& instruction) {
    if (s != section) previous.clear();
    section = s;
    if (isEvent(instruction)) return;
    auto [entry, first] = previous.try_emplace(instruction.stream(), i);
    const Instruction& before = mutants::section(plan, s)[entry->second];
    if (!first && conflict(plan, before, instruction)) list.push_back(swapped(plan, s, entry->second, i));
    entry->second = i;
  });
  return list;
}

std::vector<Mutation> missingWriters(const Plan& plan) {
  std::vector<Mutation> list;
  forAll(plan, [&](int s, int i, const Instruction& instruction) {
    bool writes = false;
    plan::forEachOperand(instruction, [&](const Operand& o) { writes |= o.access() != plan::READ; });
    if (writes) list.push_back(drop(plan, s, i));
  });
  return list;
}

// Calls add(operand number, operand) for each operand of the plan; what it returns is a change of that operand, or
// none.
using Change = std::function<void(Operand&)>;
void changeOperands(const Plan& plan, const char* what,
                    const std::function<std::vector<Change>(const Operand&)>& changes, std::vector<Mutation>& list) {
  forAll(plan, [&](int s, int i, const Instruction& instruction) {
    for (int k = 0; k < instruction.operands_size(); ++k) {
      int number = 0;
      for (const Change& change : changes(instruction.operands(k)))
        list.push_back({cat(what, " ", ++number, " of operand ", k, " of ", name(plan, s, i)),
                        [s, i, k, change](Plan& p) { change(*section(p, s)[i].mutable_operands(k)); }});
    }
  });
}

std::vector<Mutation> otherBytes(const Plan& plan) {
  std::vector<Mutation> list;
  auto at = [](uint64_t offset) { return [offset](Operand& o) { o.set_offset(offset); }; };
  auto size = [](uint64_t bytes) { return [bytes](Operand& o) { o.set_bytes(bytes); }; };
  changeOperands(
      plan, "change",
      [&](const Operand& o) {
        std::vector<Change> changes{at(o.offset() + kAlignment), at(o.offset() + 8), size(o.bytes() + 8)};
        if (o.offset() >= kAlignment) changes.push_back(at(o.offset() - kAlignment));
        if (o.bytes() > 8) changes.push_back(size(o.bytes() - 8));
        return changes;
      },
      list);
  return list;
}

std::vector<Mutation> otherStrides(const Plan& plan) {
  std::vector<Mutation> list;
  if (plan.ranks() == 1) return list;
  auto stride = [](uint64_t bytes) { return [bytes](Operand& o) { o.set_shard_stride(bytes); }; };
  changeOperands(
      plan, "stride",
      [&](const Operand& o) {
        std::vector<Change> changes{stride(o.shard_stride() + kAlignment)};
        if (o.shard_stride() > 0) {
          changes.push_back(stride(0));
          changes.push_back(stride(o.shard_stride() / 2));
        }
        return changes;
      },
      list);
  return list;
}

// A call before instruction `at` of a section, on its stream, and what it writes.
Mutation inserted(const Plan& plan, int s, int at, const Instruction& call, const std::string& what) {
  return {cat(what, " before ", name(plan, s, at)), [s, at, call](Plan& p) {
            List& list = section(p, s);
            *list.Add() = call;
            list.rbegin()->set_stream(list[at].stream());
            for (int i = list.size() - 1; i > at; --i) list.SwapElements(i, i - 1);
          }};
}

void attribute(plan::LibraryCall& call, const char* name, int64_t value) {
  plan::Attribute& attribute = *call.add_attributes();
  attribute.set_name(name);
  attribute.set_integer(value);
}

// Before each access to a buffer: ranks' parts of it set to zero, which do or do not meet, and every second element of
// what is accessed overwritten with a parameter.
std::vector<Mutation> stridedWrites(const Plan& plan) {
  std::vector<Mutation> list;
  const uint64_t ranks = static_cast<uint64_t>(plan.ranks());
  forAll(plan, [&](int s, int i, const Instruction& instruction) {
    if (s != 1 && s != 3) return;
    plan::forEachOperand(instruction, [&](const Operand& o) {
      const Buffer& buffer = plan.buffers(static_cast<int>(o.buffer()));
      auto zero = [&](uint64_t offset, uint64_t bytes, uint64_t stride) {
        if (ranks == 1 || bytes == 0 || offset + bytes + stride * (ranks - 1) > buffer.bytes()) return;
        Instruction call;
        call.mutable_call()->set_function("zero");
        Operand& part = *call.add_operands();
        part = o;
        part.set_offset(offset), part.set_bytes(bytes), part.set_shard_stride(stride);
        part.set_access(plan::WRITE), part.clear_axis();
        list.push_back(
            inserted(plan, s, i, call, cat("zeros in '", buffer.name(), "' at ", offset, " + rank * ", stride)));
      };
      const uint64_t part = buffer.bytes() / ranks / 8 * 8;
      zero(0, part, part);
      zero(part / 2, part, part);
      zero(0, part, part / 2);
      zero(o.offset(), o.bytes() / ranks, o.bytes() / ranks);
      if (o.bytes() < 16 || o.bytes() % 8 != 0 || o.offset() % 4 != 0 || o.shard_stride() > 0) return;
      for (uint64_t half : {0, 4}) {
        Instruction call;
        plan::LibraryCall& copy = *call.mutable_call();
        copy.set_function("copy");
        attribute(copy, "element_bytes", 4);
        attribute(copy, "rank", 1);
        attribute(copy, "size0", static_cast<int64_t>(o.bytes() / 8));
        attribute(copy, "source_stride0", 0);
        attribute(copy, "destination_stride0", 2);
        Operand& source = *call.add_operands();
        source.set_buffer(plan.buckets(0).parameter_buffer());
        source.set_bytes(4);
        source.set_access(plan::READ);
        Operand& destination = *call.add_operands();
        destination = o;
        destination.set_offset(o.offset() + half), destination.set_bytes(o.bytes() - 4);
        destination.set_access(plan::WRITE);
        list.push_back(inserted(plan, s, i, call, cat("every second element of '", buffer.name(), "'")));
      }
    });
  });
  return list;
}

// An output that is not handed over, or is taken for another one.
std::vector<Mutation> otherOutputs(const Plan& plan) {
  std::vector<Mutation> list;
  forAll(plan, [&](int s, int i, const Instruction& instruction) {
    if (!instruction.has_output()) return;
    list.push_back(drop(plan, s, i));
    for (int kind = plan::LOSS; kind <= plan::TENSOR; ++kind)
      if (kind != instruction.output().output())
        list.push_back({cat(name(plan, s, i), " as output ", kind), [s, i, kind](Plan& p) {
                          section(p, s)[i].mutable_output()->set_output(static_cast<plan::OutputKind>(kind));
                        }});
    for (int change : {-1, 1})
      list.push_back(
          {cat(name(plan, s, i), " as the tensor ", change < 0 ? "before" : "after"), [s, i, change](Plan& p) {
             plan::WriteOutput& output = *section(p, s)[i].mutable_output();
             output.set_tensor(output.tensor() + static_cast<uint32_t>(change));
           }});
  });
  for (int i = 0; i < plan.outputs_size(); ++i) {
    auto entry = [&](const char* what, std::function<void(plan::Output&)> change) {
      list.push_back({cat(what, " of output ", i), [i, change](Plan& p) { change(*p.mutable_outputs(i)); }});
    };
    entry("another name", [](plan::Output& o) { o.mutable_name()->append("x"); });
    entry("another axis", [](plan::Output& o) { o.set_axis(o.axis() + 1); });
    entry("other blocks", [](plan::Output& o) { o.set_blocks(o.blocks() ? 0 : 1); });
    entry("another shape", [](plan::Output& o) { o.add_shape(1); });
    entry("another type", [](plan::Output& o) { o.set_type(o.type() == plan::F32 ? plan::I32 : plan::F32); });
  }
  return list;
}

// A transfer before what it must come after, or after what must come after it, whatever their streams.
std::vector<Mutation> movedTransfers(const Plan& plan) {
  std::vector<Mutation> list;
  forAll(plan, [&](int s, int i, const Instruction& instruction) {
    if (!instruction.has_transfer()) return;
    const List& all = section(plan, s);
    for (int direction : {-1, 1})
      for (int j = i + direction; j >= 0 && j < all.size(); j += direction)
        if (!isEvent(all[j]) && conflict(plan, all[j], instruction)) {
          list.push_back(moved(plan, s, i, j));
          break;
        }
  });
  return list;
}

// A transfer of another kind or to itself, launches and buffers in other spaces.
std::vector<Mutation> otherSpaces(const Plan& plan) {
  std::vector<Mutation> list;
  forAll(plan, [&](int s, int i, const Instruction& instruction) {
    if (instruction.has_kernel())
      list.push_back({cat(name(plan, s, i), " where it is not"), [s, i](Plan& p) {
                        plan::KernelLaunch& launch = *section(p, s)[i].mutable_kernel();
                        launch.set_on_host(!launch.on_host());
                      }});
    if (!instruction.has_transfer()) return;
    for (int kind = plan::Transfer::KIND_UNSPECIFIED; kind <= plan::Transfer::WRITE_FILE; ++kind)
      if (kind != instruction.transfer().kind())
        list.push_back({cat(name(plan, s, i), " of kind ", kind), [s, i, kind](Plan& p) {
                          section(p, s)[i].mutable_transfer()->set_kind(static_cast<plan::Transfer::Kind>(kind));
                        }});
    list.push_back({cat(name(plan, s, i), " the other way round"), [s, i](Plan& p) {
                      Instruction& transfer = section(p, s)[i];
                      transfer.mutable_operands()->SwapElements(0, 1);
                      transfer.mutable_operands(0)->set_access(plan::READ);
                      transfer.mutable_operands(1)->set_access(plan::WRITE);
                    }});
  });
  for (int b = 0; b < plan.buffers_size(); ++b)
    for (Buffer::Space space : {Buffer::DEVICE, Buffer::HOST, Buffer::FILE})
      if (space != plan.buffers(b).space())
        list.push_back({cat("buffer '", plan.buffers(b).name(), "' in space ", plan::word(space)), [b, space](Plan& p) {
                          p.mutable_buffers(b)->set_space(space);
                          restatePeaks(p);
                        }});
  return list;
}

// Files that do not keep what a crash needs: a step that is not persisted, or in part, or earlier; the current
// generation where the next one is meant, and the other way round; state that has one generation.
std::vector<Mutation> otherGenerations(const Plan& plan) {
  std::vector<Mutation> list;
  for (int g = 0; g < plan.generations_size(); ++g) {
    const std::string of = cat("generation ", g);
    list.push_back({of + " missing", [g](Plan& p) { p.mutable_generations()->DeleteSubrange(g, 1); }});
    list.push_back({of + " exchanged", [g](Plan& p) {
                      plan::Generation& generation = *p.mutable_generations(g);
                      const uint32_t current = generation.current();
                      generation.set_current(generation.next()), generation.set_next(current);
                    }});
  }
  forAll(plan, [&](int s, int i, const Instruction& instruction) {
    if (instruction.has_persist()) {
      list.push_back(drop(plan, s, i));
      for (int o = 0; o < instruction.operands_size(); ++o)
        list.push_back({cat(name(plan, s, i), " without operand ", o),
                        [s, i, o](Plan& p) { section(p, s)[i].mutable_operands()->DeleteSubrange(o, 1); }});
      for (int j = 0; j < i; ++j)
        if (section(plan, s)[j].transfer().kind() == plan::Transfer::WRITE_FILE) list.push_back(moved(plan, s, i, j));
    }
    if (!instruction.has_transfer()) return;
    for (const plan::Generation& generation : plan.generations())
      for (int o = 0; o < 2; ++o) {
        const uint32_t buffer = instruction.operands(o).buffer();
        if (buffer != generation.current() && buffer != generation.next()) continue;
        const uint32_t other = generation.current() + generation.next() - buffer;
        list.push_back({cat(name(plan, s, i), " with the other generation"),
                        [s, i, o, other](Plan& p) { section(p, s)[i].mutable_operands(o)->set_buffer(other); }});
      }
  });
  return list;
}

// A collective of another count, alone and with operands that fit it.
// A sum that goes on from what its destination holds, or one that does not.
std::vector<Mutation> otherBeginnings(const Plan& plan) {
  std::vector<Mutation> list;
  forAll(plan, [&](int s, int i, const Instruction& instruction) {
    if (!instruction.has_collective() || instruction.collective().op() == plan::ALL_GATHER) return;
    const bool goesOn = plan::continues(instruction);
    list.push_back({cat(name(plan, s, i), goesOn ? " starts over" : " goes on"), [s, i, goesOn](Plan& p) {
                      section(p, s)[i].mutable_operands(1)->set_access(goesOn ? plan::WRITE : plan::READ_WRITE);
                    }});
  });
  return list;
}

std::vector<Mutation> otherCounts(const Plan& plan) {
  std::vector<Mutation> list;
  forAll(plan, [&](int s, int i, const Instruction& instruction) {
    if (!instruction.has_collective()) return;
    uint64_t count = instruction.collective().count();
    for (uint64_t other : {count + 1, count - 1, count / 2, count + 32, 2 * count}) {
      if (other == 0 || other == count) continue;
      std::string text = cat(name(plan, s, i), " of ", other, " elements instead of ", count);
      list.push_back({text, [s, i, other](Plan& p) { section(p, s)[i].mutable_collective()->set_count(other); }});
      list.push_back({text + ", its operands too", [s, i, other, count](Plan& p) {
                        Instruction& changed = section(p, s)[i];
                        changed.mutable_collective()->set_count(other);
                        for (Operand& o : *changed.mutable_operands()) {
                          o.set_bytes(o.bytes() / count * other);
                          o.set_shard_stride(o.shard_stride() / count * other);
                        }
                      }});
    }
  });
  return list;
}

// The index that a stride is multiplied by is another one, with the stride as it is and as that of as many parts.
std::vector<Mutation> otherAxes(const Plan& plan) {
  std::vector<Mutation> list;
  if (plan.ranks_per_node() == 0) return list;
  changeOperands(
      plan, "axis",
      [&](const Operand& o) {
        std::vector<Change> changes;
        for (plan::Axis axis : {plan::WORLD, plan::NODE, plan::NETWORK}) {
          if (axis == o.axis()) continue;
          const uint64_t whole = o.shard_stride() * static_cast<uint64_t>(plan::ranksOn(plan, o.axis()));
          for (uint64_t stride : std::set<uint64_t>{o.shard_stride(), o.bytes(),
                                                    whole / static_cast<uint64_t>(plan::ranksOn(plan, axis))})
            changes.push_back([axis, stride](Operand& o) { o.set_axis(axis), o.set_shard_stride(stride); });
        }
        return changes;
      },
      list);
  return list;
}

// A collective on another communicator, and communicators between other ranks.
std::vector<Mutation> otherCommunicators(const Plan& plan) {
  std::vector<Mutation> list;
  forAll(plan, [&](int s, int i, const Instruction& instruction) {
    if (!instruction.has_collective()) return;
    for (uint32_t other = 0; other < plan.communicators(); ++other)
      if (other != instruction.collective().communicator())
        list.push_back({cat(name(plan, s, i), " on communicator ", other),
                        [s, i, other](Plan& p) { section(p, s)[i].mutable_collective()->set_communicator(other); }});
  });
  for (int i = 0; i < plan.communicator_axes_size(); ++i)
    for (plan::Axis axis : {plan::WORLD, plan::NODE, plan::NETWORK})
      if (axis != plan.communicator_axes(i))
        list.push_back({cat("communicator ", i, " on axis ", plan::word(axis)),
                        [i, axis](Plan& p) { p.set_communicator_axes(i, axis); }});
  return list;
}

std::vector<Mutation> otherNodes(const Plan& plan) {
  std::vector<Mutation> list;
  if (plan.ranks() == 1) return list;
  for (int64_t each : {int64_t{0}, int64_t{1}, plan.ranks_per_node() / 2, 2 * plan.ranks_per_node(), plan.ranks()})
    if (each != plan.ranks_per_node())
      list.push_back({cat(each, " ranks a node"), [each](Plan& p) { p.set_ranks_per_node(each); }});
  for (int stage = 0; stage <= 3; ++stage)
    if (stage != plan.network_stage())
      list.push_back({cat("stage ", stage, " between nodes"), [stage](Plan& p) { p.set_network_stage(stage); }});
  return list;
}

std::vector<Mutation> otherStages(const Plan& plan) {
  std::vector<Mutation> list;
  for (int stage = 0; stage <= 3; ++stage)
    if (stage != plan.zero_stage() && plan.ranks() > 1)
      list.push_back(
          {cat("stage ", plan.zero_stage(), " declared as ", stage), [stage](Plan& p) { p.set_zero_stage(stage); }});
  return list;
}

}  // namespace

const std::vector<MutationKind> kMutationKinds{
    {"wait deleted", deletedWaits, false},
    {"record deleted", deletedRecords, false},
    {"record before its producer", earlyRecords, false},
    {"wait after its consumer", lateWaits, false},
    {"instruction on another stream", otherStreams, true},
    {"buffer moved by its alignment", movedBuffers, true},
    {"buffer on a live one's bytes", sharedBytes, true},
    {"neighbouring collectives swapped", swappedCollectives, true},
    {"dependent neighbours swapped", swappedNeighbours, true},
    {"writer missing", missingWriters, true},
    {"operand's offset or size changed", otherBytes, true},
    {"shard stride changed", otherStrides, true},
    {"collective's count changed", otherCounts, true},
    {"sum starts over or goes on", otherBeginnings, true},
    {"strided write inserted", stridedWrites, true},
    {"transfer moved", movedTransfers, true},
    {"another space", otherSpaces, true},
    {"other generations", otherGenerations, false},
    {"another stage declared", otherStages, false},
    {"axis of an operand changed", otherAxes, true},
    {"another communicator", otherCommunicators, true},
    {"other nodes declared", otherNodes, false},
    {"output missing or changed", otherOutputs, true},
    {"operand in another buffer", otherBuffers, true},
    {"instruction repeated at the end", repeatedAtTheEnd, true},
    {"attribute changed", otherAttributes, false},
    {"hyperparameter changed", otherHyperparameters, false},
    {"inputs changed", otherInputs, false},
    {"parameters changed", otherParameters, false},
    {"buckets and states changed", otherBuckets, false},
    {"files and constants changed", otherFiles, false},
    {"kernels changed", otherKernels, false},
    {"images changed", otherImages, false},
    {"turns changed", otherTurns, true},
    {"floor changed", otherFloors, false},
    {"origin changed", otherOrigins, false},
    {"digests missing or changed", otherDigests, false},
};

}  // namespace sheaf::mutants
