// The reference page of library calls, from their tables.
#include <string>

#include "runtime/base/Text.h"
#include "runtime/plan/Library.h"

namespace sheaf::plan {
namespace {

std::string boundText(int64_t bound) {
  if (bound == kMaxSize) return "2^31";
  if (bound == kMaxStride) return "2^40";
  return bound == -kMaxStride ? "-2^40" : std::to_string(bound);
}
std::string limitsText(Range range) {
  return cat(boundText(range.low), " .. ", boundText(range.high));
}
template <typename Owner>
std::string limitsText(const AtLeast<Owner>& limits) {
  return cat(limits.text, " .. 2^31");
}
std::string limitsText(Flag) {
  return "0 or 1";
}
std::string limitsText(RealRange range) {
  return cat("real, ", range.low, " .. ", range.high);
}
template <typename Value>
std::string limitsText(Choices<Value> choices) {
  std::vector<std::string> all;
  for (const auto& choice : choices.all) {
    const std::string number = std::to_string(static_cast<int64_t>(choice.value));
    all.push_back(number == choice.name ? number : cat(number, " = ", choice.name));
  }
  return listText(all, all.size());
}

template <typename Limits>
std::string valueText(auto value, const Limits&) {
  return cat(value);
}
template <typename Value>
std::string valueText(Value value, Choices<Value> choices) {
  for (const auto& choice : choices.all)
    if (choice.value == value) return std::string(choice.name);
  return "";
}

std::string attributeRow(std::string_view name, const std::string& limits, const std::string& otherwise,
                         std::string_view text) {
  return cat("| ", name, " | ", limits, " | ", otherwise, " | ", text, " |\n");
}

template <typename Owner, typename Value, typename Limits>
std::string rowsOf(const Field<Owner, Value, Limits>& field) {
  const std::string otherwise = field.required ? "required" : valueText(Owner().*field.member, field.limits);
  return attributeRow(cat("`", field.name, "`"), limitsText(field.limits), otherwise, field.text);
}
template <typename Owner, typename Element, typename... Fields>
std::string rowsOf(const List<Owner, Element, Fields...>& list) {
  std::string rows = attributeRow(cat("`", list.name, "`"), limitsText(Range{0, list.most}), "0", list.text);
  std::apply(
      [&](const auto&... field) {
        ((rows += attributeRow(cat("`", field.name, "0`, .."), limitsText(field.limits), "required", field.text)), ...);
      },
      list.fields);
  return rows;
}

std::string_view widthText(Width width) {
  switch (width) {
    case Width::kByte:
      return "bytes";
    case Width::kF32:
      return "f32";
    case Width::kF64:
      return "f64";
    case Width::kI64:
      return "i64";
    case Width::kType:
      return "`type`";
    case Width::kElementBytes:
      return "`element_bytes`";
    case Width::kIndexBytes:
      return "`index_bytes`";
  }
  return "";
}

template <typename Call>
std::string sectionOf() {
  std::string page = cat("## ", Schema<Call>::kName, "\n\n", Schema<Call>::kText, "\n\n");
  page += "| operand | access | type | shape |\n|---|---|---|---|\n";
  for (const OperandRow<Call>& row : Schema<Call>::kOperands)
    page += cat("| `", row.name, "`", row.present ? ", optional" : "", " | ", row.access == READ ? "read" : "written",
                " | ", widthText(row.width), " | ", row.text, " |\n");
  if (std::tuple_size_v < decltype(Schema<Call>::kFields) >> 0)
    page += "\n| attribute | values | default | meaning |\n|---|---|---|---|\n";
  forEachField<Call>([&](const auto& row) { page += rowsOf(row); });
  return page + "\n";
}

template <typename... Calls>
std::string sections(const std::variant<Calls...>*) {
  return (sectionOf<Calls>() + ...);
}

}  // namespace

std::string libraryReference() {
  return "# Library calls\n\n"
         "The functions that an instruction `call` of a plan may name, with their operands in order and their "
         "attributes. Generated\nfrom the tables in `runtime/plan/calls`, from which plans are also checked.\n\n"
         "Operands are dense row-major unless attributes give strides; strides and counts are in elements. An operand "
         "of scratch\nfollows the others where a device needs some. An attribute at its default may be left out, and "
         "the compiler leaves it\nout; one that a function does not have is an error.\n\n" +
         sections(static_cast<const AnyCall*>(nullptr));
}

}  // namespace sheaf::plan
