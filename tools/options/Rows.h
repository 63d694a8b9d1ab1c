// Makes the rows of a table whose values go into a struct. The target of an option is a path of members, and its
// default is what the path has in a new struct, so that neither is written twice:
//
//   using Row = options::Rows<CompileOptions>;
//   Row::integer<&CompileOptions::import, &ImportOptions::ranks>("--ranks", "N", 1, 65536, "Number of ranks.")
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <type_traits>
#include <utility>

#include "runtime/base/Text.h"
#include "tools/options/Table.h"

namespace sheaf::options {

// The words of an option, each with the value that it stands for.
template <typename Value>
using Words = std::vector<std::pair<std::string, Value>>;

template <typename Target>
struct Rows {
  template <auto... Path>
  static auto& at(void* target) {
    return (*static_cast<Target*>(target).*....*Path);
  }
  template <auto... Path>
  using Member = std::remove_reference_t<decltype(at<Path...>(nullptr))>;

  // A row whose values `parse` reads: a function from a text to Expected<Value>, whose error says what was expected. A
  // vector of values takes one each time the option is given.
  template <auto... Path, typename Parse>
  static Option parsed(std::string name, std::string syntax, std::string takes, std::string help, Parse parse) {
    using Value = std::remove_reference_t<decltype(*parse(std::string()))>;
    constexpr bool list = std::is_same_v<Member<Path...>, std::vector<Value>>;
    Option row{std::move(name), std::move(syntax), std::move(takes), "", "", std::move(help), "", list, {}};
    if constexpr (std::equality_comparable<Value>)
      row.same = [parse](const std::string& a, const std::string& b) {
        auto x = parse(a), y = parse(b);
        return x.ok() && y.ok() && *x == *y;
      };
    row.set = [parse = std::move(parse)](void* target, const std::string& text) {
      auto value = parse(text);
      if (!value.ok()) return value.status();
      if constexpr (list)
        at<Path...>(target).push_back(std::move(*value));
      else
        at<Path...>(target) = std::move(*value);
      return Status();
    };
    return row;
  }

  // Any text that is not empty.
  template <auto... Path>
  static Option text(std::string name, std::string syntax, std::string help) {
    std::string expected = cat("expected ", syntax);
    Option row = parsed<Path...>(std::move(name), syntax, syntax, std::move(help),
                                 [expected](const std::string& text) -> Expected<std::string> {
                                   if (text.empty()) return Status::error(expected);
                                   return text;
                                 });
    if constexpr (std::is_same_v<Member<Path...>, std::string>) row.fallback = initial<Path...>();
    return row;
  }

  template <auto... Path>
  static Option integer(std::string name, std::string syntax, int64_t least, int64_t most, std::string help) {
    std::string range, takes = "an integer";
    if (most < INT64_MAX) {
      range = cat(least, " to ", most);
      takes += cat(" from ", range);
    } else if (least > INT64_MIN) {
      range = cat(least, " or more");
      takes += cat(" of at least ", least);
    }
    Option row = parsed<Path...>(
        std::move(name), std::move(syntax), takes, std::move(help),
        [least, most, expected = cat("expected ", takes)](const std::string& text) -> Expected<int64_t> {
          int64_t value = 0;
          if (parseInteger(text, value) && value >= least && value <= most) return value;
          const bool digits = text.find_first_not_of("0123456789", text.starts_with('-')) == std::string::npos;
          return Status::error(digits && most == INT64_MAX ? cat("expected an integer from ", least, " to ", most)
                                                           : expected);
        });
    row.range = std::move(range);
    if constexpr (std::is_integral_v<Member<Path...>>) row.fallback = cat(initial<Path...>());
    return row;
  }

  // A number of f32 that is at least `least`, or above it.
  template <auto... Path>
  static Option real(std::string name, std::string syntax, double least, bool above, std::string help) {
    std::string takes = cat("a number ", above ? "above " : "of at least ", least);
    Option row = parsed<Path...>(
        std::move(name), std::move(syntax), takes, std::move(help),
        [least, above, expected = cat("expected ", takes)](const std::string& text) -> Expected<double> {
          double value = 0;
          if (!parseReal(text, value) || !(above ? value > least : value >= least)) return Status::error(expected);
          if (const std::string problem = f32Problem(value); !problem.empty())
            return Status::error(cat(expected, "; ", value, " ", problem));
          return value;
        });
    row.range = above ? cat("above ", least) : cat(least, " or more");
    return row;
  }

  // A number of bytes, at least 1.
  template <auto... Path>
  static Option bytes(std::string name, std::string help) {
    return parsed<Path...>(std::move(name), "SIZE", "a size in bytes, such as 24GiB or 80GB", std::move(help),
                           [](const std::string& text) -> Expected<uint64_t> {
                             uint64_t value = 0;
                             const std::string problem = bytesProblem(text, value);
                             if (problem.empty() && value > 0) return value;
                             return Status::error(cat("expected a size in bytes, such as 24GiB or 80GB; ",
                                                      problem.empty() ? "at least 1 byte is needed" : problem));
                           });
  }

  // One of some words, in any case, each of which stands for a value. `synonyms`: words that help does not list.
  template <auto... Path, typename Value>
  static Option choice(std::string name, Words<Value> words, std::string help, Words<Value> synonyms = {}) {
    std::string syntax, fallback;
    std::vector<std::string> names;
    for (const auto& [word, value] : words) {
      names.push_back(word);
      syntax += (syntax.empty() ? "" : "|") + word;
      if (initial<Path...>() == value) fallback = word;
    }
    std::string takes = cat("one of ", listText(names));
    words.insert(words.end(), synonyms.begin(), synonyms.end());
    Option row = parsed<Path...>(
        std::move(name), std::move(syntax), takes, std::move(help),
        [words = std::move(words), names = std::move(names), takes](const std::string& text) -> Expected<Value> {
          const std::string lower = lowerCase(text);
          for (const auto& [word, value] : words)
            if (lowerCase(word) == lower) return value;
          const std::string near = nearest(lower, names);
          return Status::error(cat("expected ", takes, near.empty() ? "" : cat("; did you mean ", near, "?")));
        });
    row.fallback = std::move(fallback);
    return row;
  }
  template <auto... Path>
  static Option word(std::string name, std::initializer_list<const char*> words, std::string help) {
    Words<std::string> pairs;
    for (const char* word : words) pairs.emplace_back(word, word);
    return choice<Path...>(std::move(name), std::move(pairs), std::move(help));
  }

  // An option without a value: what is false becomes true, and what is true false.
  template <auto... Path>
  static Option flag(std::string name, std::string help) {
    Option row{std::move(name), "", "", "", "", std::move(help), "", false, {}};
    row.set = [value = !initial<Path...>()](void* target, const std::string&) {
      at<Path...>(target) = value;
      return Status();
    };
    return row;
  }

  template <auto... Path>
  static Positional positional(std::string syntax) {
    if constexpr (std::is_same_v<Member<Path...>, std::string>)
      return {std::move(syntax), [](void* target) -> std::string& { return at<Path...>(target); }, nullptr};
    else
      return {std::move(syntax), nullptr,
              [](void* target) -> std::vector<std::string>& { return at<Path...>(target); }};
  }

 private:
  template <auto... Path>
  static Member<Path...> initial() {
    Target fresh;
    return at<Path...>(&fresh);
  }
};

}  // namespace sheaf::options
