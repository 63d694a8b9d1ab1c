#include "runtime/plan/Library.h"

#include <algorithm>
#include <string>

#include "runtime/base/Text.h"

namespace sheaf::plan {
namespace {

// Returns a name from a plan in quotes, cut to a bounded length. (A call of `quoted` would take std::quoted, where
// <iomanip> is included.)
std::string inQuotes(std::string_view name) {
  return cat("'", name.substr(0, 64), "'");
}

template <typename Value>
std::string listOf(Choices<Value> choices) {
  std::vector<std::string> names;
  for (const auto& choice : choices.all) {
    const int64_t number = static_cast<int64_t>(choice.value);
    const bool same = std::to_string(number) == choice.name;
    names.push_back(same ? std::string(choice.name) : cat(number, " (", choice.name, ")"));
  }
  std::string text = names.front();
  for (size_t i = 1; i < names.size(); ++i) text += cat(i + 1 == names.size() ? " or " : ", ", names[i]);
  return text;
}

// Reads the attributes of a call by its table, and keeps the first fault.
class Reader {
 public:
  explicit Reader(const LibraryCall& wire) : wire_(wire), taken_(static_cast<size_t>(wire.attributes_size())) {}

  template <typename Call, typename Owner, typename Value, typename Limits>
  void read(Call& call, const Field<Owner, Value, Limits>& field, const std::string& suffix = "") {
    const std::string name = std::string(field.name) + suffix;
    names_.push_back(name);
    const Attribute* attribute = take(name);
    if (attribute)
      set(static_cast<Owner&>(call).*field.member, field.limits, name, *attribute);
    else if (field.required && missing_.empty())
      missing_ = cat("attribute ", inQuotes(name), " is missing");
  }

  template <typename Call, typename Owner, typename Element, typename... Fields>
  void read(Call& call, const List<Owner, Element, Fields...>& list) {
    names_.emplace_back(list.name);
    int64_t size = 0;
    if (const Attribute* attribute = take(list.name))
      set(size, Range{0, list.most}, std::string(list.name), *attribute);
    if (!fault_.empty()) return;
    auto& elements = call.*list.member;
    elements.resize(static_cast<size_t>(size));
    for (size_t i = 0; i < elements.size(); ++i)
      std::apply([&](const auto&... field) { (read(elements[i], field, std::to_string(i)), ...); }, list.fields);
  }

  // Bounds that depend on other attributes, once these are known to be within theirs.
  template <typename Call, typename Owner>
  void bound(const Call& call, const Field<Owner, int64_t, AtLeast<Owner>>& field) {
    const int64_t value = call.*field.member, low = field.limits.low(call);
    if (value < low)
      fail(cat("attribute ", inQuotes(field.name), " is ", value, ", but must be at least ", low, " (",
               field.limits.text, ")"));
  }
  template <typename Call, typename Other>
  void bound(const Call&, const Other&) {}

  Status finish() const {
    if (!fault_.empty()) return error(fault_);
    // A misspelt name explains a missing one.
    for (int i = 0; i < wire_.attributes_size(); ++i) {
      if (taken_[static_cast<size_t>(i)]) continue;
      const std::string& name = wire_.attributes(i).name();
      if (std::find(names_.begin(), names_.end(), name) != names_.end())
        return error(cat("attribute ", inQuotes(name), " is given twice"));
      const std::string similar = nearest(name, names_);
      return error(cat("it has no attribute ", inQuotes(name),
                       similar.empty() ? "" : cat("; did you mean ", inQuotes(similar), "?")));
    }
    return missing_.empty() ? Status() : error(missing_);
  }

  Status error(const std::string& why) const { return Status::error(cat(wire_.function(), ": ", why)); }

 private:
  const Attribute* take(std::string_view name) {
    for (int i = 0; i < wire_.attributes_size(); ++i)
      if (wire_.attributes(i).name() == name && !taken_[static_cast<size_t>(i)]) {
        taken_[static_cast<size_t>(i)] = true;
        return &wire_.attributes(i);
      }
    return nullptr;
  }

  void fail(const std::string& why) {
    if (fault_.empty()) fault_ = why;
  }

  bool isInteger(const std::string& name, const Attribute& attribute) {
    if (attribute.has_integer()) return true;
    fail(cat("attribute ", inQuotes(name), " must be an integer"));
    return false;
  }
  void out(const std::string& name, const auto& value, const std::string& limits) {
    fail(cat("attribute ", inQuotes(name), " is ", value, ", but must ", limits));
  }

  void set(int64_t& value, Range range, const std::string& name, const Attribute& attribute) {
    if (!isInteger(name, attribute)) return;
    value = attribute.integer();
    if (value < range.low || value > range.high) out(name, value, cat("lie in [", range.low, ", ", range.high, "]"));
  }
  template <typename Owner>
  void set(int64_t& value, const AtLeast<Owner>&, const std::string& name, const Attribute& attribute) {
    set(value, kSizes, name, attribute);
  }
  void set(bool& value, Flag, const std::string& name, const Attribute& attribute) {
    int64_t number = 0;
    set(number, Range{0, 1}, name, attribute);
    value = number != 0;
  }
  void set(double& value, RealRange range, const std::string& name, const Attribute& attribute) {
    if (!attribute.has_real()) return fail(cat("attribute ", inQuotes(name), " must be a real number"));
    value = attribute.real();
    if (!(value >= range.low && value <= range.high))
      out(name, value, cat("lie in [", range.low, ", ", range.high, "]"));
  }
  template <typename Value>
  void set(Value& value, Choices<Value> choices, const std::string& name, const Attribute& attribute) {
    if (!isInteger(name, attribute)) return;
    for (const Choice<Value>& choice : choices.all)
      if (static_cast<int64_t>(choice.value) == attribute.integer()) {
        value = choice.value;
        return;
      }
    out(name, attribute.integer(), "be " + listOf(choices));
  }

  const LibraryCall& wire_;
  std::vector<bool> taken_;
  std::vector<std::string> names_;  // of the call's attributes
  std::string fault_, missing_;
};

template <typename Call>
Expected<AnyCall> parseAs(const LibraryCall& wire) {
  constexpr int kMaxAttributes = 128;
  Reader reader(wire);
  if (wire.attributes_size() > kMaxAttributes)
    return reader.error(cat("it has more than ", kMaxAttributes, " attributes"));
  Call call;
  forEachField<Call>([&](const auto& row) { reader.read(call, row); });
  SHEAF_RETURN_IF_ERROR(reader.finish());
  forEachField<Call>([&](const auto& row) { reader.bound(call, row); });
  SHEAF_RETURN_IF_ERROR(reader.finish());
  if constexpr (requires { call.check(); })
    if (Status status = call.check(); !status.ok()) return reader.error(status.message());
  return AnyCall(std::move(call));
}

template <typename... Calls>
Expected<AnyCall> parseAny(const LibraryCall& wire, const std::variant<Calls...>*) {
  using Parse = Expected<AnyCall> (*)(const LibraryCall&);
  Parse parse = nullptr;
  ((wire.function() == Schema<Calls>::kName ? void(parse = parseAs<Calls>) : void()), ...);
  if (parse) return parse(wire);
  return Status::error(cat("unknown library function ", inQuotes(wire.function())));
}

void add(LibraryCall& wire, std::string name, double value) {
  Attribute* attribute = wire.add_attributes();
  attribute->set_name(std::move(name));
  attribute->set_real(value);
}
template <typename Value>
void add(LibraryCall& wire, std::string name, Value value) {
  Attribute* attribute = wire.add_attributes();
  attribute->set_name(std::move(name));
  attribute->set_integer(static_cast<int64_t>(value));
}

template <typename Call, typename Owner, typename Value, typename Limits>
void write(LibraryCall& wire, const Call& call, const Field<Owner, Value, Limits>& field,
           const std::string& suffix = "") {
  const Value& value = static_cast<const Owner&>(call).*field.member;
  if (field.required || value != Owner().*field.member) add(wire, std::string(field.name) + suffix, value);
}
template <typename Call, typename Owner, typename Element, typename... Fields>
void write(LibraryCall& wire, const Call& call, const List<Owner, Element, Fields...>& list) {
  const auto& elements = call.*list.member;
  if (!elements.empty()) add(wire, std::string(list.name), elements.size());
  for (size_t i = 0; i < elements.size(); ++i)
    std::apply([&](const auto&... field) { (write(wire, elements[i], field, std::to_string(i)), ...); }, list.fields);
}

}  // namespace

std::string_view nameOf(const AnyCall& any) {
  return std::visit([]<typename Call>(const Call&) { return Schema<Call>::kName; }, any);
}

template <typename Call>
constexpr bool kDraws = requires {
  Schema<Call>::kRandom;
};

bool isRandom(const LibraryCall& wire) {
  return [&]<typename... Calls>(const std::variant<Calls...>*) {
    // A random node has a number of its own.
    static_assert(((kDraws<Calls> || !requires { &Calls::node; }) && ...));
    return ((kDraws<Calls> && wire.function() == Schema<Calls>::kName) || ...);
  }(static_cast<const AnyCall*>(nullptr));
}

Expected<AnyCall> parseCall(const LibraryCall& wire) {
  return parseAny(wire, static_cast<const AnyCall*>(nullptr));
}

LibraryCall toWire(const AnyCall& any) {
  LibraryCall wire;
  std::visit(
      [&]<typename Call>(const Call& call) {
        wire.set_function(std::string(Schema<Call>::kName));
        forEachField<Call>([&](const auto& row) { write(wire, call, row); });
      },
      any);
  return wire;
}

std::vector<Attribute> canonicalAttributes(const LibraryCall& wire) {
  const Expected<AnyCall> call = parseCall(wire);
  const LibraryCall written = call.ok() ? toWire(*call) : wire;
  return {written.attributes().begin(), written.attributes().end()};
}

std::vector<OperandNeed> operandsOf(const AnyCall& any) {
  return std::visit(
      []<typename Call>(const Call& call) {
        std::vector<OperandNeed> needs;
        for (const OperandRow<Call>& row : Schema<Call>::kOperands) {
          if (!row.isIn(call)) continue;
          const int64_t width = bytesOf(row.width, call);
          const int64_t bytes = saturatingMultiply(row.elements(call), width);
          needs.push_back({row.name, row.access, static_cast<uint64_t>(bytes), width});
        }
        return needs;
      },
      any);
}

std::vector<Runs> writtenRuns(const AnyCall& any) {
  return std::visit(
      []<typename Call>(const Call& call) {
        std::vector<Runs> all;
        for (const OperandRow<Call>& row : Schema<Call>::kOperands) {
          if (!row.isIn(call)) continue;
          Runs runs = row.written ? row.written(call) : Runs{{}, row.elements(call)};
          const int64_t bytes = bytesOf(row.width, call);
          runs.width = saturatingMultiply(runs.width, bytes);
          for (Runs::Dimension& d : runs.dimensions) d.step = saturatingMultiply(d.step, bytes);
          all.push_back(std::move(runs));
        }
        return all;
      },
      any);
}

uint64_t scratchPerThread(const AnyCall& any) {
  return std::visit(
      [](const auto& call) -> uint64_t {
        if constexpr (requires { call.scratchPerThread(); }) return call.scratchPerThread();
        return 0;
      },
      any);
}

uint64_t deviceScratch(const AnyCall& any) {
  return std::visit(
      [](const auto& call) -> uint64_t {
        if constexpr (requires { call.deviceScratch(); }) return call.deviceScratch();
        return 0;
      },
      any);
}

uint64_t libraryBytes(const Plan& plan) {
  // Instructions of a stream run one after the other, each on at most max_threads threads; streams run together.
  std::vector<uint64_t> most(static_cast<size_t>(std::max(plan.streams_size(), 1)), 0);
  forEachInstruction(plan, [&](const Instruction& instruction) {
    if (!instruction.has_call() || instruction.stream() >= most.size()) return;
    const Expected<AnyCall> parsed = parseCall(instruction.call());
    if (!parsed.ok()) return;
    std::visit(
        [&](const auto& call) {
          uint64_t& bytes = most[instruction.stream()];
          if constexpr (requires { call.packingBytes(); }) bytes = std::max(bytes, call.packingBytes());
        },
        *parsed);
  });
  uint64_t sum = 0;
  for (uint64_t bytes : most) sum += bytes;
  return sum * std::max<uint32_t>(plan.max_threads(), 1);
}

}  // namespace sheaf::plan
