#include "runtime/plan/Same.h"

#include <algorithm>
#include <bit>
#include <filesystem>
#include <set>

#include "runtime/base/Text.h"
#include "runtime/plan/Digests.h"
#include "runtime/plan/LossScale.h"
#include "runtime/plan/Schedules.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Words.h"
#include "runtime/plan/leaves/LeafDataflow.h"

namespace sheaf::plan {
namespace {

using Parts = google::protobuf::RepeatedPtrField<Origin::Part>;

// Exact: two numbers that print alike may differ.
std::string numberText(double value) {
  return cat(value, " (bits ", hexText(std::bit_cast<uint64_t>(value)), ")");
}

std::string shapeText(const Parameter& parameter) {
  std::string text = cat(word(parameter.type()), " [");
  for (int i = 0; i < parameter.shape_size(); ++i) text += cat(i ? ", " : "", parameter.shape(i));
  return text + "]";
}

std::string layoutText(const Parameter& parameter) {
  std::string text;
  for (int64_t dimension : parameter.permutation()) text += cat(dimension, " ");
  return text.empty() ? "the model's" : cat("permuted by ", text);
}

std::string imageText(const KernelImage& image) {
  std::string text = cat(image.target(), " for ", image.cpu());
  std::vector<std::string> features(image.features().begin(), image.features().end());
  std::sort(features.begin(), features.end());
  return features.empty() ? text : cat(text, " with ", listText(features, features.size()));
}

// The options that `a` has and `b` has not.
std::string onlyIn(const Origin& a, const Origin& b) {
  std::string text;
  for (const std::string& option : a.options())
    if (std::find(b.options().begin(), b.options().end(), option) == b.options().end()) text += cat(" ", option);
  return text;
}

// Compares one thing after another until two differ.
class Comparer {
 public:
  Comparer(const Plan& first, const Plan& second) : a(first), b(second) {}

  Comparison run() {
    (void)(settings() || training() || program("the step", a.origin().step(), b.origin().step()) || buckets() ||
           parameters() || evaluation());
    if (result.difference && !models()) {
      const std::string mine = onlyIn(a.origin(), b.origin()), theirs = onlyIn(b.origin(), a.origin());
      std::string& text = result.difference->options;
      if (!mine.empty()) text = cat("the first has", mine);
      if (!theirs.empty()) text += cat(mine.empty() ? "" : ", ", "the second has", theirs);
    }
    return std::move(result);
  }

 private:
  // True: they differ, and nothing else need be compared.
  bool differs(std::string subject, std::string first, std::string second, std::string remedy = "") {
    if (first == second) return false;
    constexpr size_t kMost = 200;
    result.difference = {std::move(subject), first.substr(0, kMost), second.substr(0, kMost), "", std::move(remedy)};
    return true;
  }

  // True if the plans are of different models: each has an input that the other lacks, or they have different
  // parameters alone. Then that is the difference.
  bool models() {
    using Names = std::set<std::string>;
    auto inputs = [](const Plan& plan) {
      Names names;
      for (const Input& input : plan.inputs())
        if (!input.row_mask() && !input.row_index()) names.insert(input.name());
      return names;
    };
    auto parameters = [](const Plan& plan) {
      Names names;
      for (const Parameter& parameter : plan.parameters()) names.insert(parameter.name());
      return names;
    };
    auto lacksOne = [](const Names& some, const Names& all) {
      return !std::includes(all.begin(), all.end(), some.begin(), some.end());
    };
    auto modelsWith = [&](const char* what, const Names& x, const Names& y) {
      auto text = [&](const Plan& plan, const Names& names) {
        return cat(plan.model(), " with ", what, " ", listText({names.begin(), names.end()}, 4));
      };
      return differs("the model", text(a, x), text(b, y), "compile both from the same model");
    };
    const Names mine = inputs(a), theirs = inputs(b), all = parameters(a), others = parameters(b);
    if (lacksOne(mine, theirs) && lacksOne(theirs, mine)) return modelsWith("inputs", mine, theirs);
    if (all.empty() || others.empty()) return false;
    const bool shares = std::any_of(all.begin(), all.end(), [&](const auto& name) { return others.contains(name); });
    return !shares && modelsWith("parameters", all, others);
  }

  bool settings() {
    auto trains = [](const Plan& plan) { return plan.body_size() > 0 ? "there" : "missing"; };
    return differs("the compiler", a.producer(), b.producer(), "compile both with one version") ||
           differs("the training step", trains(a), trains(b)) ||
           differs("the number of leaves", cat(a.origin().leaves()), cat(b.origin().leaves()), leavesRemedy()) ||
           differs("the batch", cat(a.batch()), cat(b.batch()), "compile both with the same --batch") || targets();
  }

  std::string leavesRemedy() const {
    const int64_t most = std::max(a.origin().leaves(), b.origin().leaves());
    for (const Plan* plan : {&a, &b}) {
      const int64_t pieces = plan->ranks() * microBatches(*plan);
      if (most % pieces != 0 || !std::has_single_bit(static_cast<uint64_t>(most / pieces)))
        return "compile both with the same --leaves";
    }
    return cat("compile both with --leaves ", most);
  }

  // Instructions of another processor may add in another order. Updates, which is what the image for the host is for,
  // add nothing up: they have the same bits everywhere.
  bool targets() {
    const std::vector<const KernelImage*> mine = targetImages(a), theirs = targetImages(b);
    for (size_t i = 0; i < std::min(mine.size(), theirs.size()); ++i)
      if (differs("the target", imageText(*mine[i]), imageText(*theirs[i]), "compile both with one --target and --cpu"))
        return true;
    return differs("the list of targets", targetsText(a), targetsText(b));
  }

  bool training() {
    const Training &x = a.training(), &y = b.training();
    // Compared as what they are; their texts may have been written in two ways.
    auto optimizer = [&] {
      return x.optimizer() == y.optimizer() ? false : differs("the optimizer", x.optimizer(), y.optimizer());
    };
    if (groups()) return true;
    if (a.scalars_size() != b.scalars_size())
      return optimizer() || differs("the number of step scalars", cat(a.scalars_size()), cat(b.scalars_size()));
    auto scalarText = [](const StepScalar& s) { return cat(word(s.kind()), " of ", numberText(s.value())); };
    for (int i = 0; i < a.scalars_size(); ++i) {
      const StepScalar &mine = a.scalars(i), &theirs = b.scalars(i);
      if (mine.SerializeAsString() == theirs.SerializeAsString()) continue;
      if (optimizer() || differs("a step scalar", scalarText(mine), scalarText(theirs)) ||
          differs("the parameter group of a step scalar", cat(mine.group()), cat(theirs.group())))
        return true;
    }
    auto lossScale = [](const Training& t) { return t.has_loss_scale() ? lossScaleText(t.loss_scale()) : "none"; };
    return differs("the learning rate", numberText(x.learning_rate()), numberText(y.learning_rate())) ||
           differs("the learning-rate schedule", scheduleText(x.schedule()), scheduleText(y.schedule())) ||
           differs("the norm that gradients are clipped to", numberText(x.clip_norm()), numberText(y.clip_norm())) ||
           differs("what a gradient that is not finite does", word(x.on_nan()), word(y.on_nan())) ||
           differs("the seed", cat(x.seed()), cat(y.seed())) ||
           differs("the order of sums over GPUs", word(x.reduce_order()), word(y.reduce_order())) ||
           differs("the loss scale", lossScale(x), lossScale(y));
  }

  bool groups() {
    const auto &x = a.training().groups(), &y = b.training().groups();
    if (differs("the number of parameter groups", cat(x.size()), cat(y.size()))) return true;
    auto text = [](const ParameterGroup& group) {
      return cat("'", group.name(), "' with '", group.settings(), "'",
                 group.has_learning_rate() ? cat(" and learning rate ", numberText(group.learning_rate())) : "");
    };
    for (int i = 0; i < x.size(); ++i)
      if (differs(cat("parameter group ", i), text(x[i]), text(y[i]))) return true;
    return false;
  }

  bool program(const std::string& what, const Parts& x, const Parts& y) {
    auto at = [&](const Parts& parts, int i) {
      if (i >= parts.size()) return std::string("its end");
      return parts[i].name().empty() ? cat("piece ", i) : cat("'", shortName(parts[i].name()), "'");
    };
    for (int i = 0; i < std::max(x.size(), y.size()); ++i) {
      if (i < std::min(x.size(), y.size()) && x[i].hash() == y[i].hash() && x[i].name() == y[i].name()) continue;
      const std::string subject = cat("the program of ", what, ", at piece ", i, ",");
      std::string first = at(x, i), second = at(y, i);
      if (first == second) second += " with other operations, types or attributes";
      return differs(subject, first, second);
    }
    return false;
  }

  bool buckets() {
    const int count = comparedBuckets(a);
    if (differs("the number of buckets", cat(count), cat(comparedBuckets(b)), kBucketRemedy)) return true;
    for (int i = 0; i < count; ++i) {
      const Bucket &x = a.buckets(i), &y = b.buckets(i);
      const std::string name = cat("bucket '", shortName(x.name()), "'");
      if (differs(cat("the name of bucket ", i), x.name(), y.name(), kBucketRemedy) ||
          differs(cat("the number of elements of ", name), cat(x.elements()), cat(y.elements()), kBucketRemedy) ||
          differs(cat("the type of ", name), word(x.type()), word(y.type())) ||
          differs(cat("the type of gradients of ", name), word(gradientType(x)), word(gradientType(y))) ||
          differs(cat("the parameter group of ", name), cat(x.group()), cat(y.group())) ||
          differs(cat("the optimizer state of ", name), statesText(x), statesText(y)))
        return true;
    }
    return false;
  }

  static constexpr const char* kBucketRemedy = "compile both with the same --bucket-size";

  // Those that count: the ones that the step reads, frozen ones too. What only the evaluation reads is in buckets that
  // follow them, and counts if both have an evaluation.
  int comparedBuckets(const Plan& plan) const {
    if (a.evaluation_size() > 0 && b.evaluation_size() > 0) return plan.buckets_size();
    std::vector<bool> read(static_cast<size_t>(plan.buffers_size()));
    for (const auto& [section, list] : sectionsOf(plan))
      for (const Instruction& instruction : *list)
        if (list != &plan.evaluation())
          forEachOperand(instruction, [&](const Operand& operand) { read[operand.buffer()] = true; });
    int count = 0;
    for (int i = 0; i < plan.buckets_size(); ++i)
      if (plan.buckets(i).trainable() || read[plan.buckets(i).parameter_buffer()]) count = i + 1;
    return count;
  }

  static std::string statesText(const Bucket& bucket) {
    std::string text = cat(bucket.trainable() ? "trained" : "frozen", bucket.master() ? ", master weights" : "");
    for (const State& state : bucket.states()) text += cat(", ", state.name());
    return text;
  }

  bool parameters() {
    auto members = [&](const Plan& plan) {
      const int count = comparedBuckets(plan);
      std::vector<const Parameter*> list;
      for (const Parameter& parameter : plan.parameters())
        if (static_cast<int>(parameter.bucket()) < count) list.push_back(&parameter);
      return list;
    };
    const std::vector<const Parameter*> all = members(a), others = members(b);
    if (differs("the number of parameters", cat(all.size()), cat(others.size()))) return true;
    for (size_t i = 0; i < all.size(); ++i) {
      const Parameter &x = *all[i], &y = *others[i];
      auto place = [](const Parameter& p) { return cat("bucket ", p.bucket(), " at element ", p.offset()); };
      const std::string name = cat("parameter '", shortName(x.name()), "'");
      if (differs(cat("the name of parameter ", i), x.name(), y.name()) ||
          differs(cat("the type of ", name), shapeText(x), shapeText(y)) ||
          differs(cat("the layout of ", name), layoutText(x), layoutText(y)) ||
          differs(cat("the place of ", name), place(x), place(y), kBucketRemedy) ||
          differs(cat("the type of the initial values of ", name), word(sourceType(x)), word(sourceType(y))) ||
          initialBytes(name, x, y))
        return true;
    }
    return false;
  }

  // By the hashes of the bytes; where a plan has none, by the place in files that are the same as far as is known.
  bool initialBytes(const std::string& name, const Parameter& x, const Parameter& y) {
    const std::string subject = cat("the initial values of ", name);
    if (differs(subject, x.has_source() ? "in a file" : "none", y.has_source() ? "in a file" : "none")) return true;
    if (!x.has_source()) return false;
    const Source &mine = x.source(), &theirs = y.source();
    if (differs(subject, cat(mine.length(), " bytes"), cat(theirs.length(), " bytes"))) return true;
    if (mine.hashes_size() > 0 && theirs.hashes_size() > 0) {
      for (int i = 0; i < std::min(mine.hashes_size(), theirs.hashes_size()); ++i)
        if (differs(subject, cat("bytes with hash ", hexText(mine.hashes(i))),
                    cat("bytes with hash ", hexText(theirs.hashes(i)))))
          return true;
      return differs(subject, cat(mine.hashes_size(), " hashes"), cat(theirs.hashes_size(), " hashes"));
    }
    constexpr const char* kRemedy = "compile both without --no-weight-hashes";
    auto hashed = [](const Source& source) { return source.hashes_size() > 0 ? "with hashes" : "without hashes"; };
    if (differs(subject, hashed(mine), hashed(theirs), kRemedy)) return true;
    constexpr const char* kNote =
        "initial values were compared by the sizes of their files and the first 64 KiB alone; to compare all of them, "
        "compile without --no-weight-hashes where the files are";
    if (std::find(result.notes.begin(), result.notes.end(), kNote) == result.notes.end()) result.notes.push_back(kNote);
    auto text = [](const Plan& plan, const Source& source) {
      const File& file = plan.files(static_cast<int>(source.file()));
      return cat("byte ", source.offset(), " of ", std::filesystem::path(file.path()).filename().string(), " of ",
                 file.size(), " bytes with hash ", hexText(file.hash()));
    };
    return differs(subject, text(a, mine), text(b, theirs), kRemedy);
  }

  bool evaluation() {
    const bool mine = a.evaluation_size() > 0, theirs = b.evaluation_size() > 0;
    if (mine != theirs)
      result.notes.push_back(cat("only the ", mine ? "first" : "second", " has an evaluation"));
    else if (mine && microBatches(a) != microBatches(b))
      result.notes.push_back(
          cat("evaluations were not compared: their batches have ", rowsAtOnce(a), " and ", rowsAtOnce(b), " rows"));
    else if (mine)
      return program("the evaluation", a.origin().evaluation(), b.origin().evaluation());
    return false;
  }

  const Plan &a, &b;
  Comparison result;
};

}  // namespace

Expected<Comparison> compareInstructions(const Plan& first, const std::string& firstName, const Plan& second,
                                         const std::string& secondName, std::optional<uint64_t> most) {
  // What makes each value is kept where there is a difference to explain.
  for (bool explains : {false, true}) {
    std::vector<LeafDataflow> dataflows;
    for (const auto& [plan, name] : {std::pair(&first, &firstName), std::pair(&second, &secondName)}) {
      Expected<LeafDataflow> dataflow = followLeaves(*plan, explains, most);
      if (!dataflow.ok()) return Status::error(cat(*name, ": ", dataflow.status().message()));
      if (!dataflow->complete) return Comparison();
      dataflows.push_back(std::move(*dataflow));
    }
    const bool evaluations =
        first.evaluation_size() > 0 && second.evaluation_size() > 0 && microBatches(first) == microBatches(second);
    std::optional<LeafDifference> found = firstDifference({first, dataflows[0]}, {second, dataflows[1]}, evaluations);
    Comparison result;
    result.proved = true;
    if (!found) return result;
    if (!explains) continue;
    result.difference = {
        cat("what their instructions compute as ", found->value, ","), found->first, found->second, "", "", false};
    return result;
  }
  return Comparison();
}

Expected<Comparison> compareOrigins(const Plan& first, const std::string& firstName, const Plan& second,
                                    const std::string& secondName) {
  for (const auto& [plan, name] : {std::pair(&first, &firstName), std::pair(&second, &secondName)})
    if (!plan->has_origin() || (plan->origin().step().empty() && plan->origin().evaluation().empty()))
      return Status::error(
          cat(*name,
              " does not state what it was compiled from, as plans that were made or edited by hand do "
              "not, so it cannot be compared; compile the model again"));
  return Comparer(first, second).run();
}

Expected<Comparison> comparePlans(const Plan& first, const std::string& firstName, const Plan& second,
                                  const std::string& secondName) {
  Expected<Comparison> origins = compareOrigins(first, firstName, second, secondName);
  if (!origins.ok() || origins->difference) return origins;
  Expected<Comparison> instructions = compareInstructions(first, firstName, second, secondName, kQuickPieces);
  if (!instructions.ok()) return instructions;
  instructions->notes = std::move(origins->notes);
  if (!instructions->proved)
    instructions->notes.push_back(
        "what they were compiled from is the same; what their instructions compute takes longer to compare, with "
        "`sheaf same`");
  return instructions;
}

}  // namespace sheaf::plan
