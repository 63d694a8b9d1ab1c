#include "test/mutants/LeafMutations.h"

#include <algorithm>
#include <map>

#include "runtime/base/Text.h"
#include "runtime/plan/MicroBatches.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/leaves/KernelProgram.h"

namespace sheaf::mutants {
namespace {

using plan::Instruction, plan::Kernel, plan::KernelProgram, plan::Operand, plan::Plan, plan::ProgramLine;
using List = google::protobuf::RepeatedPtrField<Instruction>;

// All lists of instructions, in one order.
std::vector<List*> listsOf(Plan& plan) {
  std::vector<List*> lists{plan.mutable_prologue(), plan.mutable_body(), plan.mutable_epilogue()};
  for (plan::StepPart& part : *plan.mutable_parts()) lists.push_back(part.mutable_instructions());
  return lists;
}
Instruction& instruction(Plan& plan, size_t list, int i) {
  return *listsOf(plan)[list]->Mutable(i);
}
template <typename Visit>
void forAll(const Plan& plan, Visit visit) {
  Plan copy = plan;
  const std::vector<List*> lists = listsOf(copy);
  for (size_t list = 0; list < lists.size(); ++list)
    for (int i = 0; i < lists[list]->size(); ++i) visit(list, i, lists[list]->Get(i));
}

std::string nameOf(size_t list, int i, const Instruction& instruction) {
  return cat("instruction ", i, " of list ", list, " (", plan::instructionKind(instruction), " '", instruction.label(),
             "')");
}

// Where an operand lies, but for what is done with it.
void exchangePlaces(Operand& a, Operand& b) {
  std::swap(a, b);
  const plan::Access access = a.access();
  a.set_access(b.access());
  b.set_access(access);
}

google::protobuf::RepeatedPtrField<Operand>* operandsOf(Instruction& instruction) {
  return instruction.has_kernel() || instruction.has_call() ? instruction.mutable_operands() : nullptr;
}

// Two operands that one instruction reads change places: the terms of a sum among them.
std::vector<Mutation> exchangedTerms(const Plan& plan) {
  std::vector<Mutation> made;
  forAll(plan, [&](size_t list, int i, const Instruction& one) {
    Instruction copy = one;
    const auto* operands = operandsOf(copy);
    for (int a = 0; operands && a < operands->size(); ++a)
      for (int b = a + 1; b < operands->size(); ++b) {
        const Operand &x = operands->Get(a), &y = operands->Get(b);
        const bool alike = x.access() == plan::READ && y.access() == plan::READ && x.bytes() == y.bytes();
        if (alike && (x.buffer() != y.buffer() || x.offset() != y.offset()))
          made.push_back(
              {cat("operands ", a, " and ", b, " of ", nameOf(list, i, one), " exchanged"), [list, i, a, b](Plan& p) {
                 auto* all = operandsOf(instruction(p, list, i));
                 exchangePlaces(*all->Mutable(a), *all->Mutable(b));
               }});
      }
  });
  return made;
}

// What is done for each leaf, or each micro-batch, is done with the rows of another.
std::vector<Mutation> exchangedLeaves(const Plan& plan) {
  std::vector<Mutation> made;
  auto signature = [](const Instruction& one) {
    Instruction bare = one;
    bare.clear_label();
    if (auto* operands = operandsOf(bare))
      for (Operand& operand : *operands) operand.clear_offset(), operand.clear_buffer();
    return bare.SerializeAsString();
  };
  std::map<std::pair<size_t, std::string>, std::vector<std::pair<int, Instruction>>> alike;
  // Two that read nothing, zeros of two buffers, write the same wherever they write: exchanging their places changes no
  // bit.
  auto reads = [](const Instruction& one) {
    Instruction copy = one;
    const auto* operands = operandsOf(copy);
    return operands && std::any_of(operands->begin(), operands->end(),
                                   [](const Operand& operand) { return operand.access() != plan::WRITE; });
  };
  forAll(plan, [&](size_t list, int i, const Instruction& one) {
    if (reads(one)) alike[{list, signature(one)}].emplace_back(i, one);
  });
  // Each with the next of its kind.
  for (auto& [key, all] : alike)
    for (size_t n = 0; n + 1 < all.size(); ++n) {
      auto& [i, x] = all[n];
      auto& [j, y] = all[n + 1];
      for (int k = 0; k < operandsOf(x)->size(); ++k) {
        const Operand &a = operandsOf(x)->Get(k), &b = operandsOf(y)->Get(k);
        if (a.buffer() == b.buffer() && a.offset() != b.offset())
          made.push_back(
              {cat("operand ", k, " exchanged between ", nameOf(key.first, i, x), " and ", nameOf(key.first, j, y)),
               [list = key.first, i = i, j = j, k](Plan& p) {
                 exchangePlaces(*operandsOf(instruction(p, list, i))->Mutable(k),
                                *operandsOf(instruction(p, list, j))->Mutable(k));
               }});
      }
    }
  return made;
}

std::vector<Mutation> otherDealing(const Plan& plan) {
  std::vector<Mutation> made;
  // In groups of one micro-batch both have the same rows.
  if (plan.ranks() > 1 && plan::MicroBatchGroups(plan::microBatches(plan)).size() > 1)
    made.push_back({"the other dealing", [](Plan& p) {
                      p.set_dealing(p.dealing() == plan::BY_RANK ? plan::BY_MICRO_BATCH : plan::BY_RANK);
                    }});
  for (int i = 0; i < plan.turns_size(); ++i)
    for (int j = i + 1; j < plan.turns_size(); ++j) {
      made.push_back({cat("the micro-batches of turns ", i, " and ", j, " exchanged"), [i, j](Plan& p) {
                        const uint32_t first = p.turns(i).micro_batch();
                        p.mutable_turns(i)->set_micro_batch(p.turns(j).micro_batch());
                        p.mutable_turns(j)->set_micro_batch(first);
                      }});
      made.push_back(
          {cat("turns ", i, " and ", j, " exchanged"), [i, j](Plan& p) { p.mutable_turns()->SwapElements(i, j); }});
    }
  return made;
}

// A sum of other ranks or of another type, or one that goes on from what its destination holds, or does not.
std::vector<Mutation> otherSums(const Plan& plan) {
  std::vector<Mutation> made;
  forAll(plan, [&](size_t list, int i, const Instruction& one) {
    if (!one.has_collective()) return;
    const plan::Collective& collective = one.collective();
    for (uint32_t c = 0; c < plan.communicators(); ++c)
      if (plan::axisOf(plan, static_cast<int>(c)) != plan::axisOf(plan, collective))
        made.push_back({cat(nameOf(list, i, one), " on communicator ", c),
                        [list, i, c](Plan& p) { instruction(p, list, i).mutable_collective()->set_communicator(c); }});
    const plan::ElementType other = collective.type() == plan::BF16  ? plan::F16
                                    : collective.type() == plan::F16 ? plan::BF16
                                                                     : plan::ELEMENT_TYPE_UNSPECIFIED;
    if (other && collective.op() != plan::ALL_GATHER)
      made.push_back({cat(nameOf(list, i, one), " rounds to the other type of 16 bits"),
                      [list, i, other](Plan& p) { instruction(p, list, i).mutable_collective()->set_type(other); }});
    if (collective.op() != plan::ALL_GATHER)
      made.push_back({cat(nameOf(list, i, one), plan::continues(one) ? " starts over" : " goes on"),
                      [list, i, access = plan::continues(one) ? plan::WRITE : plan::READ_WRITE](Plan& p) {
                        instruction(p, list, i).mutable_operands(1)->set_access(access);
                      }});
  });
  made.push_back({"the other order of sums", [](Plan& p) {
                    const bool ring = p.training().reduce_order() == plan::Training::RING;
                    p.mutable_training()->set_reduce_order(ring ? plan::Training::TREE : plan::Training::RING);
                  }});
  if (plan.ranks() == 1) made.pop_back();
  return made;
}

// A kernel that states another program.
class ProgramMutations {
 public:
  explicit ProgramMutations(const Plan& plan) : plan_(plan) {}

  template <typename Change>
  std::vector<Mutation> of(const char* what, Change change) {
    std::vector<Mutation> made;
    for (int k = 0; k < plan_.kernels_size(); ++k) {
      Expected<KernelProgram> program = plan::programOf(plan_.kernels(k));
      if (!program.ok()) continue;
      for (size_t i = 0; i < program->lines.size(); ++i) {
        ProgramLine line = program->lines[i];
        if (!change(line, *program)) continue;
        made.push_back(
            {cat(what, " '", line.text(), "' for '", plan_.kernels(k).ops(static_cast<int>(i)), "' in kernel ", k),
             [k, i, text = line.text()](Plan& p) { p.mutable_kernels(k)->set_ops(static_cast<int>(i), text); }});
      }
    }
    return made;
  }

 private:
  const Plan& plan_;
};

// A line of a program whose leaves lie otherwise.
std::vector<Mutation> otherRows(const Plan& plan) {
  std::vector<Mutation> made = ProgramMutations(plan).of("rows", [](ProgramLine& line, const KernelProgram&) {
    if (line.leaves < 2) return false;
    for (int64_t outer = 1; outer <= line.elements(); ++outer)
      if (outer != line.outer && line.elements() % outer == 0) {
        line.outer = outer;
        return !line.pitch || line.elements() / outer % line.columns() == 0;
      }
    return false;
  });
  for (Mutation& mutation :
       ProgramMutations(plan).of("half as many leaves", [](ProgramLine&line, const KernelProgram&) {
         if (line.leaves < 2) return false;
         line.shape.insert(line.shape.begin(), 2);
         return (line.leaves /= 2) > 0;
       }))
    made.push_back(std::move(mutation));
  return made;
}

std::vector<Mutation> otherOps(const Plan& plan) {
  ProgramMutations programs(plan);
  std::vector<Mutation> made = programs.of("another op", [](ProgramLine& line, const KernelProgram&) {
    if (line.kind == ProgramLine::kOperand || line.kind == ProgramLine::kResult || line.kind == ProgramLine::kSame)
      return false;
    // Of what has no shape, and a constant, the name says nothing.
    if (line.kind == ProgramLine::kSpread || line.kind == ProgramLine::kSplat) return false;
    line.name += "x";
    return true;
  });
  auto more = [&](std::vector<Mutation> list) {
    for (Mutation& mutation : list) made.push_back(std::move(mutation));
  };
  more(programs.of("another attribute", [](ProgramLine& line, const KernelProgram&) {
    line.attributes ^= 1;
    return line.kind == ProgramLine::kMap || line.kind == ProgramLine::kWhole || line.kind == ProgramLine::kSplat;
  }));
  more(programs.of("exchanged operands", [](ProgramLine& line, const KernelProgram& program) {
    if (line.of.size() < 2 || line.of[0] == line.of[1]) return false;
    std::swap(line.of[0], line.of[1]);
    return program.lines[line.of[0]].shape == program.lines[line.of[1]].shape;
  }));
  // A rounding to the other type of 16 bits.
  more(programs.of("another rounding", [](ProgramLine& line, const KernelProgram&) {
    if (line.kind != ProgramLine::kMap || line.name != "cast" || !plan::isWidened(line.type)) return false;
    line.type = line.type == plan::BF16 ? plan::F16 : plan::BF16;
    return true;
  }));
  return made;
}

// The result of a sum that is rounded to 16 bits is rounded to the other type.
std::vector<Mutation> otherRoundings(const Plan& plan) {
  return ProgramMutations(plan).of("another rounding of the result",
                                   [](ProgramLine& line, const KernelProgram& program) {
                                     if (line.kind != ProgramLine::kResult || !plan::isWidened(line.type)) return false;
                                     const ProgramLine& from = program.lines[line.of[0]];
                                     if (from.kind != ProgramLine::kMap || from.name == "cast") return false;
                                     line.type = line.type == plan::BF16 ? plan::F16 : plan::BF16;
                                     return true;
                                   });
}

}  // namespace

const std::vector<MutationKind> kLeafMutationKinds = {
    {"operands of an instruction exchanged", exchangedTerms, true},
    {"operands of two instructions exchanged", exchangedLeaves, true},
    {"dealt otherwise", otherDealing, false},
    {"another sum over ranks", otherSums, false},
    {"rows of a kernel elsewhere", otherRows, false},
    {"another program of a kernel", otherOps, false},
    {"another rounding", otherRoundings, false},
};

}  // namespace sheaf::mutants
