#include "runtime/comm/local/Reduce.h"

#include <algorithm>
#include <type_traits>

#include "runtime/plan/ElementValues.h"

namespace sheaf::comm {
namespace {

// Elements summed at a time: the blocks of partial sums stay in the first-level cache while the ranks pass by.
constexpr uint64_t kBlock = 512;

// Values reads, adds and writes elements of a type.
template <typename Element>
struct Values {
  using Sum = typename Element::Sum;
  using Stored = std::conditional_t<Element::kWidened, typename Element::Stored, Sum>;

  static Sum load(Stored value) {
    if constexpr (Element::kWidened)
      return plan::widened(value);
    else
      return value;
  }
  static void store(Sum value, Stored& result) {
    if constexpr (Element::kWidened)
      plan::narrow(value, result);
    else
      result = value;
  }
  static Sum rounded(Sum value) {
    Stored stored;
    store(value, stored);
    return load(stored);
  }
};

template <typename Element>
class Tree {
 public:
  using Stored = typename Element::Stored;
  using Sum = typename Element::Sum;

  explicit Tree(std::span<const std::byte* const> sources) : sources_(sources) {}

  void sum(std::byte* destination, uint64_t count, bool continues) {
    const size_t ranks = sources_.size(), subtree = ranks & -ranks;  // 2^k
    alignas(64) Sum total[kBlock], term[kBlock];
    for (begin_ = 0; begin_ < count; begin_ += kBlock) {
      size_ = std::min(kBlock, count - begin_);
      Stored* result = reinterpret_cast<Stored*>(destination) + begin_;
      if (continues)
        for (uint64_t i = 0; i < size_; ++i) total[i] = Element::load(result[i]);
      else
        add(0, subtree, total);
      for (size_t first = continues ? 0 : subtree; first < ranks; first += subtree) {
        add(first, subtree, term);
        addTo(total, term);
      }
      for (uint64_t i = 0; i < size_; ++i) Element::store(total[i], result[i]);
    }
  }

 private:
  const Stored* source(size_t rank) const { return reinterpret_cast<const Stored*>(sources_[rank]) + begin_; }

  void addTo(Sum* sum, const Sum* term) const {
    for (uint64_t i = 0; i < size_; ++i) sum[i] = Element::rounded(sum[i] + term[i]);
  }

  // The block's sum over 2^k ranks.
  void add(size_t first, size_t ranks, Sum* sum) const {
    if (ranks == 1) {
      const Stored* only = source(first);
      for (uint64_t i = 0; i < size_; ++i) sum[i] = Element::load(only[i]);
    } else if (ranks == 2) {
      const Stored *left = source(first), *right = source(first + 1);
      for (uint64_t i = 0; i < size_; ++i) sum[i] = Element::rounded(Element::load(left[i]) + Element::load(right[i]));
    } else {
      alignas(64) Sum term[kBlock];
      add(first, ranks / 2, sum);
      add(first + ranks / 2, ranks / 2, term);
      addTo(sum, term);
    }
  }

  const std::span<const std::byte* const> sources_;
  uint64_t begin_ = 0, size_ = 0;
};

}  // namespace

void sumOverRanks(plan::ElementType type, std::span<const std::byte* const> sources, std::byte* destination,
                  uint64_t count, bool continues) {
  plan::visitElement<&plan::ElementFacts::summed>(
      type, [&](auto element) { Tree<Values<decltype(element)>>(sources).sum(destination, count, continues); });
}

}  // namespace sheaf::comm
