// The words for the values of plan.proto's enumerations: in command lines, the text form, JSON and messages. plan.proto
// spells them; a word is an enumerator's name in lower case.
#pragma once

#include <google/protobuf/generated_enum_util.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/plan/plan.pb.h"

namespace sheaf::plan {

template <typename T>
concept ProtoEnum = google::protobuf::is_proto_enum<T>::value;

// All words, by value; empty where a value has none, as the unspecified one.
template <ProtoEnum Enum>
std::span<const std::string> wordTable();
template <>
std::span<const std::string> wordTable<ElementType>();
template <>
std::span<const std::string> wordTable<BufferKind>();
template <>
std::span<const std::string> wordTable<CollectiveOp>();
template <>
std::span<const std::string> wordTable<Collective::Phase>();
template <>
std::span<const std::string> wordTable<OutputKind>();
template <>
std::span<const std::string> wordTable<StepScalar::Kind>();
template <>
std::span<const std::string> wordTable<Training::OnNan>();
template <>
std::span<const std::string> wordTable<Training::ReduceOrder>();
template <>
std::span<const std::string> wordTable<Dealing>();
template <>
std::span<const std::string> wordTable<Axis>();
template <>
std::span<const std::string> wordTable<Buffer::Space>();
template <>
std::span<const std::string> wordTable<Transfer::Kind>();

// Whether a value is one of the enumeration's and says something.
template <ProtoEnum Enum>
bool isKnown(Enum value) {
  const auto table = wordTable<Enum>();
  const auto index = static_cast<size_t>(value);
  return index < table.size() && !table[index].empty();
}

// "unspecified" for a value that is not known.
template <ProtoEnum Enum>
const std::string& word(Enum value) {
  static const std::string kNone = "unspecified";
  return isKnown(value) ? wordTable<Enum>()[static_cast<size_t>(value)] : kNone;
}

template <ProtoEnum Enum>
std::optional<Enum> valueOf(std::string_view word) {
  const auto table = wordTable<Enum>();
  for (size_t i = 0; i < table.size(); ++i)
    if (!word.empty() && table[i] == word) return static_cast<Enum>(i);
  return std::nullopt;
}

// The words that there are.
template <ProtoEnum Enum>
std::vector<std::string> words() {
  std::vector<std::string> all;
  for (const std::string& word : wordTable<Enum>())
    if (!word.empty()) all.push_back(word);
  return all;
}

}  // namespace sheaf::plan
