#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "ir/Plan/Text.h"
#include "runtime/plan/Verify.h"
#include "test/fuzz/Targets.h"

namespace sheaf::fuzz {
namespace {

std::vector<std::string> linesOf(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t from = 0; from < text.size();) {
    const size_t to = std::min(text.find('\n', from), text.size() - 1) + 1;
    lines.push_back(text.substr(from, to - from));
    from = to;
  }
  return lines;
}

// Removes, repeats and moves lines, and takes lines of another text.
std::string mutateLines(const std::string& text, const std::string& other, Random& random) {
  std::vector<std::string> lines = linesOf(text);
  const std::vector<std::string> others = linesOf(other);
  for (uint64_t round = 1 + random.below(3); round > 0; --round) {
    const size_t at = random.below(lines.size()), to = random.below(lines.size());
    const uint64_t kind = random.below(4);
    if (kind == 0 && lines.size() > 1)
      lines.erase(lines.begin() + static_cast<ptrdiff_t>(at));
    else if (kind == 1)
      std::swap(lines[at], lines[to]);
    else
      lines.insert(lines.begin() + static_cast<ptrdiff_t>(at),
                   kind == 2 ? std::string(lines[to]) : others[random.below(others.size())]);
  }
  std::string all;
  for (const std::string& line : lines) all += line;
  return all;
}

// Puts words of the text, or marks, in the place of words.
std::string mutateWords(std::string text, Random& random) {
  const auto isWord = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '%';
  };
  const auto word = [&] {
    size_t from = random.below(text.size());
    while (from > 0 && isWord(text[from - 1])) --from;
    size_t size = 1;
    while (from + size < text.size() && isWord(text[from]) && isWord(text[from + size])) ++size;
    return std::pair(from, size);
  };
  static constexpr std::string_view kMarks[] = {"",           "{",
                                                "}",          "[]",
                                                "()",         "\"\"",
                                                ",",          "-1",
                                                "0.5",        "0x7FF0000000000000 : f64",
                                                "%",          "\n",
                                                "array<i64>", "// ",
                                                "4294967296", "18446744073709551615",
                                                "\"\\FF\""};
  for (uint64_t round = 1 + random.below(3); round > 0 && !text.empty(); --round) {
    const auto [from, size] = word();
    const auto [other, otherSize] = word();
    const std::string by =
        random.oneIn(2) ? text.substr(other, otherSize) : std::string(kMarks[random.below(std::size(kMarks))]);
    text.replace(from, size, by);
  }
  return text;
}

// The text of what was read must be read as the same plan, and printed as the same text.
void expectStable(const plan::Plan& plan) {
  const std::string text = plan_ir::textOf(plan);
  const Expected<plan::Plan> again = plan_ir::parseText(text, "again");
  if (again.ok() && again->SerializeAsString() == plan.SerializeAsString() && plan_ir::textOf(*again) == text) return;
  std::fprintf(stderr, "the text of a plan: %s\n",
               again.ok() ? "read as another plan" : again.status().message().c_str());
  std::abort();
}

}  // namespace

Target textTarget(const std::string& corpus) {
  auto seeds = std::make_shared<std::vector<Seed>>(readSeeds(corpus + "/text"));
  return {"text", 8, [=](Random& random) {
            const std::string& seed = (*seeds)[random.below(seeds->size())].bytes;
            const std::string& other = (*seeds)[random.below(seeds->size())].bytes;
            const uint64_t kind = random.below(3);
            const std::string text = kind == 0   ? mutateText(seed, random)
                                     : kind == 1 ? mutateWords(seed, random)
                                                 : mutateLines(seed, other, random);
            const Expected<std::vector<plan::Plan>> plans = plan_ir::parseTexts(text, "text");
            if (!plans.ok()) return;
            for (const plan::Plan& plan : *plans) {
              expectStable(plan);
              (void)plan::verifyPlan(plan);
            }
          }};
}

}  // namespace sheaf::fuzz
