// Mutations of what a plan says besides the order and the bytes of its instructions: tables, attributes, images,
// digests.
#include <cmath>
#include <set>

#include "runtime/base/Text.h"
#include "runtime/plan/DigestTable.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Words.h"
#include "test/mutants/Mutations.h"

namespace sheaf::mutants {
namespace {

using plan::Instruction, plan::Operand, plan::Plan;

struct Maker {
  const Plan& plan;
  std::vector<Mutation> list = {};

  void add(std::string description, std::function<void(Plan&)> apply) {
    list.push_back({std::move(description), std::move(apply)});
  }
  // A change of each entry of a table.
  void each(int size, const char* what, const std::function<void(Plan&, int)>& change) {
    for (int i = 0; i < size; ++i) add(cat(what, " ", i), [change, i](Plan& p) { change(p, i); });
  }
  // An exchange between each two neighbouring entries of a table.
  void neighbours(int size, const char* what, const std::function<void(Plan&, int, int)>& exchange) {
    for (int i = 0; i + 1 < size; ++i)
      add(cat(what, " ", i, " and ", i + 1), [exchange, i](Plan& p) { exchange(p, i, i + 1); });
  }
  // A change of each instruction that `change` is for; it is called with the instruction of the mutant.
  void instructions(const std::function<void(Maker&, const Instruction&, const std::string&,
                                             const std::function<Instruction&(Plan&)>&)>& change) {
    for (int i = 0; i < plan.prologue_size(); ++i)
      change(*this, plan.prologue(i), plan::describe(plan, "prologue", i, plan.prologue(i)),
             [i](Plan& p) -> Instruction& { return *p.mutable_prologue(i); });
    for (int i = 0; i < plan.body_size(); ++i)
      change(*this, plan.body(i), plan::describe(plan, "body", i, plan.body(i)),
             [i](Plan& p) -> Instruction& { return *p.mutable_body(i); });
    for (int i = 0; i < plan.epilogue_size(); ++i)
      change(*this, plan.epilogue(i), plan::describe(plan, "epilogue", i, plan.epilogue(i)),
             [i](Plan& p) -> Instruction& { return *p.mutable_epilogue(i); });
    for (int k = 0; k < plan.parts_size(); ++k)
      for (int i = 0; i < plan.parts(k).instructions_size(); ++i)
        change(*this, plan.parts(k).instructions(i),
               plan::describe(plan, plan.parts(k).name(), i, plan.parts(k).instructions(i)),
               [k, i](Plan& p) -> Instruction& { return *p.mutable_parts(k)->mutable_instructions(i); });
    for (int i = 0; i < plan.evaluation_size(); ++i)
      change(*this, plan.evaluation(i), plan::describe(plan, "evaluation", i, plan.evaluation(i)),
             [i](Plan& p) -> Instruction& { return *p.mutable_evaluation(i); });
  }
};

void swapBuffers(plan::State& a, plan::State& b) {
  const uint32_t first = a.buffer();
  a.set_buffer(b.buffer());
  b.set_buffer(first);
}

Operand& operandOf(Instruction& instruction, int index) {
  std::vector<Operand*> list;
  plan::forEachOperand(instruction, [&](const Operand& o) { list.push_back(const_cast<Operand*>(&o)); });
  return *list[static_cast<size_t>(index)];
}

}  // namespace

std::vector<Mutation> otherHyperparameters(const Plan& plan) {
  Maker m{plan};
  m.each(plan.scalars_size(), "twice, or 1 instead of 0, step scalar", [](Plan& p, int i) {
    plan::StepScalar& s = *p.mutable_scalars(i);
    s.set_value(s.value() == 0 ? 1 : 2 * s.value());
  });
  m.each(plan.scalars_size(), "the next number for step scalar",
         [](Plan& p, int i) { p.mutable_scalars(i)->set_value(std::nextafter(p.scalars(i).value(), 2)); });
  for (int i = 0; i < plan.scalars_size(); ++i)
    for (int k = plan::StepScalar::CONSTANT; k <= plan::StepScalar::Kind_MAX; ++k)
      if (const auto kind = static_cast<plan::StepScalar::Kind>(k); plan.scalars(i).kind() != kind)
        m.add(cat("step scalar ", i, " is a ", plan::word(kind)),
              [i, kind](Plan& p) { p.mutable_scalars(i)->set_kind(kind); });
  m.each(plan.scalars_size(), "another parameter group for step scalar",
         [](Plan& p, int i) { p.mutable_scalars(i)->set_group(p.scalars(i).group() + 1); });
  m.each(plan.training().groups_size(), "other settings for parameter group",
         [](Plan& p, int i) { p.mutable_training()->mutable_groups(i)->mutable_settings()->append("x"); });
  m.neighbours(plan.scalars_size(), "exchanged step scalars",
               [](Plan& p, int i, int j) { p.mutable_scalars()->SwapElements(i, j); });
  m.add("another optimizer", [](Plan& p) {
    p.mutable_training()->set_optimizer(p.training().optimizer().starts_with("sgd") ? "adam:lr=1" : "sgd:lr=1");
  });
  m.add("another clip norm", [](Plan& p) { p.mutable_training()->set_clip_norm(p.training().clip_norm() + 1); });
  m.add("another seed", [](Plan& p) { p.mutable_training()->set_seed(p.training().seed() + 1); });
  m.add("skip instead of stop, or the reverse", [](Plan& p) {
    const bool skips = p.training().on_nan() == plan::Training::SKIP;
    p.mutable_training()->set_on_nan(skips ? plan::Training::STOP : plan::Training::SKIP);
  });
  if (plan.training().has_loss_scale()) {
    using Setting = void (*)(plan::LossScale&);
    for (auto [what, change] :
         {std::pair<const char*, Setting>{"start", [](auto& s) { s.set_initial(2 * s.initial()); }},
          {"growth", [](auto& s) { s.set_growth(s.growth() + 1); }},
          {"interval", [](auto& s) { s.set_interval(s.interval() + 1); }},
          {"interval, none", [](auto& s) { s.set_interval(0); }},
          {"backoff", [](auto& s) { s.set_backoff(s.backoff() / 2); }},
          {"floor", [](auto& s) { s.set_floor(s.floor() / 2); }}})
      m.add(cat("another loss scale: ", what),
            [change](Plan& p) { change(*p.mutable_training()->mutable_loss_scale()); });
    m.add("no loss scale", [](Plan& p) { p.mutable_training()->clear_loss_scale(); });
    m.add("no state of the loss scale", [](Plan& p) { p.clear_loss_scale_buffer(); });
    m.add("neither", [](Plan& p) {
      p.mutable_training()->clear_loss_scale();
      p.clear_loss_scale_buffer();
    });
    for (int b = 0; b < plan.buffers_size(); ++b)
      if (plan.buffers(b).persistent() && static_cast<uint32_t>(b) != plan.loss_scale_buffer())
        m.add(cat("the loss scale in buffer '", plan.buffers(b).name(), "'"),
              [b](Plan& p) { p.set_loss_scale_buffer(static_cast<uint32_t>(b)); });
  }
  m.add("another order of sums", [](Plan& p) {
    const bool ring = p.training().reduce_order() == plan::Training::RING;
    p.mutable_training()->set_reduce_order(ring ? plan::Training::TREE : plan::Training::RING);
  });
  return m.list;
}

std::vector<Mutation> otherInputs(const Plan& plan) {
  Maker m{plan};
  m.neighbours(plan.inputs_size(), "exchanged inputs",
               [](Plan& p, int i, int j) { p.mutable_inputs()->SwapElements(i, j); });
  m.neighbours(plan.inputs_size(), "exchanged names of inputs", [](Plan& p, int i, int j) {
    p.mutable_inputs(i)->mutable_name()->swap(*p.mutable_inputs(j)->mutable_name());
  });
  m.each(plan.inputs_size(), "another name of input",
         [](Plan& p, int i) { p.mutable_inputs(i)->mutable_name()->append("x"); });
  m.each(plan.inputs_size(), "another type of input", [](Plan& p, int i) {
    plan::Input& input = *p.mutable_inputs(i);
    input.set_type(input.type() == plan::F32 ? plan::I32 : input.type() == plan::I64 ? plan::F64 : plan::F32);
  });
  m.each(plan.inputs_size(), "another shape of input", [](Plan& p, int i) { p.mutable_inputs(i)->add_shape(1); });
  m.each(plan.inputs_size(), "rows or none of input",
         [](Plan& p, int i) { p.mutable_inputs(i)->set_whole(!p.inputs(i).whole()); });
  m.each(plan.inputs_size(), "data or a mask of rows as input",
         [](Plan& p, int i) { p.mutable_inputs(i)->set_row_mask(!p.inputs(i).row_mask()); });
  m.each(plan.inputs_size(), "data or numbers of rows as input",
         [](Plan& p, int i) { p.mutable_inputs(i)->set_row_index(!p.inputs(i).row_index()); });
  m.each(plan.inputs_size(), "another number of classes of input",
         [](Plan& p, int i) { p.mutable_inputs(i)->set_classes(p.inputs(i).classes() + 1); });
  m.each(plan.inputs_size(), "another ignored label of input",
         [](Plan& p, int i) { p.mutable_inputs(i)->set_ignored_label(p.inputs(i).ignored_label() - 1); });
  m.each(plan.inputs_size(), "labels of tokens or not as input", [](Plan& p, int i) {
    p.mutable_inputs(i)->set_tokens(!p.inputs(i).tokens());
    p.mutable_inputs(i)->set_perplexity(!p.inputs(i).perplexity());
  });
  return m.list;
}

std::vector<Mutation> otherParameters(const Plan& plan) {
  Maker m{plan};
  const int size = plan.parameters_size();
  m.neighbours(size, "exchanged initial bytes of parameters", [](Plan& p, int i, int j) {
    p.mutable_parameters(i)->mutable_source()->Swap(p.mutable_parameters(j)->mutable_source());
  });
  m.neighbours(size, "exchanged places of parameters", [](Plan& p, int i, int j) {
    plan::Parameter &a = *p.mutable_parameters(i), &b = *p.mutable_parameters(j);
    const uint64_t offset = a.offset();
    const uint32_t bucket = a.bucket();
    a.set_offset(b.offset()), a.set_bucket(b.bucket());
    b.set_offset(offset), b.set_bucket(bucket);
  });
  m.neighbours(size, "exchanged names of parameters", [](Plan& p, int i, int j) {
    p.mutable_parameters(i)->mutable_name()->swap(*p.mutable_parameters(j)->mutable_name());
  });
  m.neighbours(size, "exchanged parameters", [](Plan& p, int i, int j) { p.mutable_parameters()->SwapElements(i, j); });
  m.each(size, "other initial bytes of parameter", [](Plan& p, int i) {
    plan::Source& source = *p.mutable_parameters(i)->mutable_source();
    source.set_offset(source.offset() == 0 ? 4 : source.offset() - 4);
  });
  m.each(size, "no initial bytes of parameter", [](Plan& p, int i) { p.mutable_parameters(i)->clear_source(); });
  m.each(size, "another place of parameter",
         [](Plan& p, int i) { p.mutable_parameters(i)->set_offset(p.parameters(i).offset() + plan::kAlignment); });
  m.each(size, "another shape of parameter", [](Plan& p, int i) {
    plan::Parameter& parameter = *p.mutable_parameters(i);
    parameter.add_shape(1);
    if (parameter.permutation_size() > 0) parameter.add_permutation(parameter.shape_size() - 1);
  });
  m.each(size, "another layout of parameter", [](Plan& p, int i) {
    plan::Parameter& parameter = *p.mutable_parameters(i);
    const bool had = parameter.permutation_size() > 0;
    parameter.clear_permutation();
    for (int d = parameter.shape_size(); !had && d-- > 0;) parameter.add_permutation(d);
  });
  m.each(size, "without parameter", [](Plan& p, int i) { p.mutable_parameters()->DeleteSubrange(i, 1); });
  return m.list;
}

std::vector<Mutation> otherBuckets(const Plan& plan) {
  Maker m{plan};
  const int size = plan.buckets_size();
  m.neighbours(size, "exchanged buckets", [](Plan& p, int i, int j) { p.mutable_buckets()->SwapElements(i, j); });
  m.neighbours(size, "exchanged parameters of buckets", [](Plan& p, int i, int j) {
    const uint32_t first = p.buckets(i).parameter_buffer();
    p.mutable_buckets(i)->set_parameter_buffer(p.buckets(j).parameter_buffer());
    p.mutable_buckets(j)->set_parameter_buffer(first);
  });
  m.neighbours(size, "exchanged names of buckets", [](Plan& p, int i, int j) {
    p.mutable_buckets(i)->mutable_name()->swap(*p.mutable_buckets(j)->mutable_name());
  });
  m.each(size, "fewer elements in bucket",
         [](Plan& p, int i) { p.mutable_buckets(i)->set_elements(p.buckets(i).elements() - 32 * p.ranks()); });
  m.each(size, "frozen or trained, the other of them, bucket",
         [](Plan& p, int i) { p.mutable_buckets(i)->set_trainable(!p.buckets(i).trainable()); });
  m.each(size, "other gradients of bucket", [](Plan& p, int i) {
    p.mutable_buckets(i)->set_gradient_type(plan::gradientType(p.buckets(i)) == plan::F32 ? plan::BF16 : plan::F32);
  });
  for (int b = 0; b < size; ++b) {
    const int states = plan.buckets(b).states_size();
    for (int s = 0; s < states; ++s) {
      if (s + 1 < states) {
        m.add(cat("exchanged buffers of states ", s, " and ", s + 1, " of bucket ", b), [b, s](Plan& p) {
          auto& list = *p.mutable_buckets(b)->mutable_states();
          swapBuffers(list[s], list[s + 1]);
        });
        m.add(cat("exchanged states ", s, " and ", s + 1, " of bucket ", b),
              [b, s](Plan& p) { p.mutable_buckets(b)->mutable_states()->SwapElements(s, s + 1); });
      }
      if (b + 1 < size && s < plan.buckets(b + 1).states_size())
        m.add(cat("exchanged buffers of state ", s, " of buckets ", b, " and ", b + 1), [b, s](Plan& p) {
          swapBuffers(*p.mutable_buckets(b)->mutable_states(s), *p.mutable_buckets(b + 1)->mutable_states(s));
        });
      m.add(cat("another name of state ", s, " of bucket ", b),
            [b, s](Plan& p) { p.mutable_buckets(b)->mutable_states(s)->mutable_name()->append("x"); });
    }
  }
  return m.list;
}

std::vector<Mutation> otherFiles(const Plan& plan) {
  Maker m{plan};
  m.neighbours(plan.files_size(), "exchanged files",
               [](Plan& p, int i, int j) { p.mutable_files()->SwapElements(i, j); });
  m.each(plan.files_size(), "another path of file",
         [](Plan& p, int i) { p.mutable_files(i)->mutable_path()->append("x"); });
  m.each(plan.files_size(), "another size of file",
         [](Plan& p, int i) { p.mutable_files(i)->set_size(p.files(i).size() + 1); });
  m.each(plan.files_size(), "another hash of file",
         [](Plan& p, int i) { p.mutable_files(i)->set_hash(p.files(i).hash() ^ 1); });
  m.neighbours(plan.constants_size(), "exchanged bytes of constants", [](Plan& p, int i, int j) {
    p.mutable_constants(i)->mutable_source()->Swap(p.mutable_constants(j)->mutable_source());
  });
  m.neighbours(plan.constants_size(), "exchanged buffers of constants", [](Plan& p, int i, int j) {
    const uint32_t first = p.constants(i).buffer();
    p.mutable_constants(i)->set_buffer(p.constants(j).buffer());
    p.mutable_constants(j)->set_buffer(first);
  });
  m.each(plan.parameters_size(), "other hash of parameter", [](Plan& p, int i) {
    plan::Source& source = *p.mutable_parameters(i)->mutable_source();
    source.hashes_size() ? source.set_hashes(0, source.hashes(0) ^ 1) : source.add_hashes(1);
  });
  m.each(plan.constants_size(), "other bytes of constant", [](Plan& p, int i) {
    plan::Source& source = *p.mutable_constants(i)->mutable_source();
    source.set_length(source.length() - 1);
  });
  return m.list;
}

std::vector<Mutation> otherKernels(const Plan& plan) {
  Maker m{plan};
  m.neighbours(plan.kernels_size(), "exchanged kernels",
               [](Plan& p, int i, int j) { p.mutable_kernels()->SwapElements(i, j); });
  m.neighbours(plan.kernels_size(), "exchanged symbols of kernels", [](Plan& p, int i, int j) {
    p.mutable_kernels(i)->mutable_symbol()->swap(*p.mutable_kernels(j)->mutable_symbol());
  });
  m.each(plan.kernels_size(), "another program of kernel",
         [](Plan& p, int i) { p.mutable_kernels(i)->set_program(p.kernels(i).program() + 1); });
  m.each(plan.kernels_size(), "other ops of kernel", [](Plan& p, int i) { p.mutable_kernels(i)->add_ops("x"); });
  for (int i = 0; i < plan.kernels_size(); ++i)
    for (int operand = 0; operand < plan.kernels(i).operand_access_size(); ++operand) {
      const std::string of = cat(" of operand ", operand, " of kernel ", i);
      m.add("another access" + of, [i, operand](Plan& p) {
        plan::Kernel& kernel = *p.mutable_kernels(i);
        kernel.set_operand_access(operand, kernel.operand_access(operand) == plan::READ ? plan::WRITE : plan::READ);
      });
      m.add("another place" + of, [i, operand](Plan& p) {
        plan::Kernel& kernel = *p.mutable_kernels(i);
        kernel.set_in_place(operand, kernel.in_place(operand) + 1);
      });
    }
  m.instructions([](Maker& m, const Instruction& instruction, const std::string& name, const auto& at) {
    if (!instruction.has_kernel()) return;
    for (int k = 0; k < m.plan.kernels_size(); ++k)
      if (k != static_cast<int>(instruction.kernel().kernel()))
        m.add(cat("kernel ", k, " in ", name),
              [at, k](Plan& p) { at(p).mutable_kernel()->set_kernel(static_cast<uint32_t>(k)); });
  });
  return m.list;
}

std::vector<Mutation> otherImages(const Plan& plan) {
  Maker m{plan};
  for (int i = 0; i < plan.images_size(); ++i) {
    const plan::KernelImage& image = plan.images(i);
    m.add(cat("another processor of image ", i), [i](Plan& p) { p.mutable_images(i)->mutable_cpu()->append("x"); });
    m.add(cat("another feature of image ", i), [i](Plan& p) { p.mutable_images(i)->add_features("sse9"); });
    for (int k = 0; k < image.entries_size(); ++k) {
      const std::string entry = cat("the entry of kernel ", k, " in image ", i);
      auto change = [&](const char* what, void (*apply)(plan::KernelEntry&)) {
        m.add(cat(what, entry), [i, k, apply](Plan& p) { apply(*p.mutable_images(i)->mutable_entries(k)); });
      };
      change("an instruction further: ", [](plan::KernelEntry& e) { e.set_offset(e.offset() + 1); });
      change("another grid of ", [](plan::KernelEntry& e) { e.set_grid(e.grid() + 1); });
      change("other threads of ", [](plan::KernelEntry& e) { e.set_threads(e.threads() + 32); });
      if (k + 1 < image.entries_size()) {
        m.add("exchanged with the next: " + entry,
              [i, k](Plan& p) { p.mutable_images(i)->mutable_entries()->SwapElements(k, k + 1); });
        m.add("the next one's offset: " + entry, [i, k](Plan& p) {
          p.mutable_images(i)->mutable_entries(k)->set_offset(p.images(i).entries(k + 1).offset());
        });
      }
      for (uint64_t at : {image.entries(k).offset(), image.entries(k).offset() + 21})
        if (at < image.code().size())
          m.add(cat("byte ", at, " of image ", i),
                [i, at](Plan& p) { (*p.mutable_images(i)->mutable_code())[at] ^= 0x10; });
    }
    m.add(cat("the last byte of image ", i), [i](Plan& p) { p.mutable_images(i)->mutable_code()->back() ^= 1; });
    m.add(cat("a byte more in image ", i), [i](Plan& p) { p.mutable_images(i)->mutable_code()->push_back('\0'); });
  }
  return m.list;
}

std::vector<Mutation> otherAttributes(const Plan& plan) {
  Maker m{plan};
  m.instructions([](Maker& m, const Instruction& instruction, const std::string& name, const auto& at) {
    for (int a = 0; a < instruction.call().attributes_size(); ++a) {
      const plan::Attribute& attribute = instruction.call().attributes(a);
      const std::string what = cat("attribute ", attribute.name(), " of ", name, " is ");
      if (attribute.has_real()) {
        for (double value : {attribute.real() + 1, 2 * attribute.real(), 0.0, std::nextafter(attribute.real(), 2)})
          if (value != attribute.real())
            m.add(cat(what, value),
                  [at, a, value](Plan& p) { at(p).mutable_call()->mutable_attributes(a)->set_real(value); });
        continue;
      }
      const int64_t now = attribute.integer();
      for (int64_t value : std::set<int64_t>{now + 1, now - 1, 2 * now, 0})
        // A type of 0 is F32, too.
        if (value != now && !(attribute.name() == "type" && value + now == plan::F32))
          m.add(cat(what, value),
                [at, a, value](Plan& p) { at(p).mutable_call()->mutable_attributes(a)->set_integer(value); });
    }
    if (instruction.has_collective())
      for (plan::ElementType type : {plan::F32, plan::F64, plan::BF16, plan::I32})
        if (type != instruction.collective().type())
          m.add(cat("elements of ", name, " are ", plan::word(type)),
                [at, type](Plan& p) { at(p).mutable_collective()->set_type(type); });
    if (instruction.has_output())
      m.add("the other output: " + name, [at](Plan& p) {
        plan::WriteOutput& output = *at(p).mutable_output();
        output.set_output(output.output() == plan::LOSS ? plan::GRADIENT_NORM : plan::LOSS);
      });
    if (instruction.has_input())
      for (uint32_t i = 0; i < static_cast<uint32_t>(m.plan.inputs_size()); ++i)
        if (i != instruction.input().input())
          m.add(cat("input ", i, " in ", name), [at, i](Plan& p) { at(p).mutable_input()->set_input(i); });
    if (instruction.updates_bucket() > 0)
      for (uint32_t b = 0; b <= static_cast<uint32_t>(m.plan.buckets_size()); ++b)
        if (b != instruction.updates_bucket())
          m.add(cat(name, " is the update of ", b), [at, b](Plan& p) { at(p).set_updates_bucket(b); });
  });
  return m.list;
}

std::vector<Mutation> otherBuffers(const Plan& plan) {
  Maker m{plan};
  m.instructions([](Maker& m, const Instruction& instruction, const std::string& name, const auto& at) {
    const Plan& plan = m.plan;
    int k = 0;
    plan::forEachOperand(instruction, [&](const Operand& o) {
      const uint64_t end = o.offset() + o.bytes() + plan::mostRankOffset(plan, o);
      // The next ones that are large enough.
      int left = 2;
      for (int step = 1; step < plan.buffers_size() && left > 0; ++step) {
        const uint32_t b = (o.buffer() + static_cast<uint32_t>(step)) % static_cast<uint32_t>(plan.buffers_size());
        if (plan.buffers(static_cast<int>(b)).bytes() < end) continue;
        --left;
        m.add(cat("operand ", k, " of ", name, " in buffer '", plan.buffers(static_cast<int>(b)).name(), "'"),
              [at, k, b](Plan& p) { operandOf(at(p), k).set_buffer(b); });
      }
      ++k;
    });
  });
  return m.list;
}

std::vector<Mutation> repeatedAtTheEnd(const Plan& plan) {
  Maker m{plan};
  for (int i = 0; i < plan.body_size(); ++i)
    if (const Instruction& instruction = plan.body(i); !instruction.has_record() && !instruction.has_wait())
      m.add(cat(plan::describe(plan, "body", i, instruction), " again"), [i](Plan& p) {
        const Instruction again = p.body(i);
        *p.add_body() = again;
        p.mutable_body(p.body_size() - 1)->clear_updates_bucket();
      });
  for (int i = 0; i < plan.evaluation_size(); ++i)
    if (const Instruction& instruction = plan.evaluation(i); !instruction.has_record() && !instruction.has_wait())
      m.add(cat(plan::describe(plan, "evaluation", i, instruction), " again"), [i](Plan& p) {
        const Instruction again = p.evaluation(i);
        *p.add_evaluation() = again;
      });
  // With such a declaration it seems to change nothing.
  for (int i = 0; i < plan.body_size(); ++i)
    if (plan.body(i).has_kernel())
      m.add(cat(plan::describe(plan, "body", i, plan.body(i)), " again, and declared to read only"), [i](Plan& p) {
        Instruction again = p.body(i);
        again.clear_updates_bucket();
        for (Operand& operand : *again.mutable_operands()) operand.set_access(plan::READ);
        *p.add_body() = again;
      });
  return m.list;
}

std::vector<Mutation> otherTurns(const Plan& plan) {
  Maker m{plan};
  for (int i = 0; i < plan.turns_size(); ++i) {
    m.add(cat("without turn ", i), [i](Plan& p) { p.mutable_turns()->DeleteSubrange(i, 1); });
    m.add(cat("turn ", i, " again"), [i](Plan& p) {
      const plan::Turn again = p.turns(i);
      *p.add_turns() = again;
    });
    m.add(cat("turn ", i, " of another micro-batch"),
          [i](Plan& p) { p.mutable_turns(i)->set_micro_batch(p.turns(i).micro_batch() ^ 1); });
    if (plan.parts_size() > 1)
      m.add(cat("turn ", i, " of another part"), [i](Plan& p) {
        p.mutable_turns(i)->set_part((p.turns(i).part() + 1) % static_cast<uint32_t>(p.parts_size()));
      });
  }
  m.neighbours(plan.turns_size(), "turns exchanged",
               [](Plan& p, int i, int j) { p.mutable_turns()->SwapElements(i, j); });
  if (plan.micro_batches() == 0) return m.list;
  m.add("rows dealt otherwise",
        [](Plan& p) { p.set_dealing(p.dealing() == plan::BY_RANK ? plan::BY_MICRO_BATCH : plan::BY_RANK); });
  m.add("twice as many micro-batches", [](Plan& p) {
    p.set_micro_batches(2 * p.micro_batches());
    p.set_batch(2 * p.batch());
  });
  return m.list;
}

std::vector<Mutation> otherFloors(const Plan& plan) {
  Maker m{plan};
  for (int i = 0; i < plan.floor().products_size(); ++i)
    for (const int64_t change : {-1, 1})
      m.add(cat("a flop ", change < 0 ? "less" : "more", " of products ", i, " of the floor"), [i, change](Plan& p) {
        plan::ProductFlops& products = *p.mutable_floor()->mutable_products(i);
        products.set_flops(products.flops() + static_cast<uint64_t>(change));
      });
  m.add("fewer bytes of state in the floor",
        [](Plan& p) { p.mutable_floor()->set_state_bytes(p.floor().state_bytes() / 2); });
  m.add("more bytes to reduce in the floor",
        [](Plan& p) { p.mutable_floor()->set_reduced_bytes(p.floor().reduced_bytes() + 1); });
  m.add("more bytes to gather in the floor",
        [](Plan& p) { p.mutable_floor()->set_gathered_bytes(p.floor().gathered_bytes() + 1); });
  if (plan.has_floor()) m.add("no floor", [](Plan& p) { p.clear_floor(); });
  return m.list;
}

std::vector<Mutation> otherOrigins(const Plan& plan) {
  Maker m{plan};
  if (!plan.has_origin()) return m.list;
  m.add("no origin", [](Plan& p) { p.clear_origin(); });
  m.add("twice as many leaves", [](Plan& p) { p.mutable_origin()->set_leaves(2 * p.origin().leaves()); });
  m.add("an option more in the origin", [](Plan& p) { p.mutable_origin()->add_options("--seed=1"); });
  const auto parts = [&](const char* of, auto list, auto edit) {
    for (int i = 0; i < list.size(); ++i) {
      m.add(cat("another hash of piece ", i, " of ", of),
            [=](Plan& p) { (p.mutable_origin()->*edit)()->Mutable(i)->set_hash(list[i].hash() ^ 1); });
      m.add(cat("another name of piece ", i, " of ", of),
            [=](Plan& p) { (p.mutable_origin()->*edit)()->Mutable(i)->set_name(list[i].name() + "x"); });
    }
  };
  using Edit = google::protobuf::RepeatedPtrField<plan::Origin::Part>* (plan::Origin::*)();
  parts("the step", plan.origin().step(), static_cast<Edit>(&plan::Origin::mutable_step));
  parts("the evaluation", plan.origin().evaluation(), static_cast<Edit>(&plan::Origin::mutable_evaluation));
  return m.list;
}

std::vector<Mutation> otherDigests(const Plan& plan) {
  Maker m{plan};
  for (const plan::DigestTable& table : plan::kDigestTables) {
    const int size = (plan.digests().*table.get)().size();
    if (size == 0) continue;
    m.add(cat("no digests of table ", table.name), [&](Plan& p) { (p.mutable_digests()->*table.edit)()->Clear(); });
    m.add(cat("the last digest of table ", table.name, " missing"),
          [&](Plan& p) { (p.mutable_digests()->*table.edit)()->RemoveLast(); });
    m.add(cat("a digest more of table ", table.name), [&](Plan& p) { (p.mutable_digests()->*table.edit)()->Add(1); });
    m.add(cat("the first digest of table ", table.name, " changed"),
          [&](Plan& p) { (*(p.mutable_digests()->*table.edit)())[0] ^= 1; });
  }
  m.add("no digests", [](Plan& p) { p.clear_digests(); });
  return m.list;
}

}  // namespace sheaf::mutants
