// Strided copies: slices, transposes, concatenations, padding, reversal.
#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/device/cpu/LibraryFunction.h"
#include "runtime/device/cpu/simd/Loops.h"

namespace sheaf::cpu {
namespace {

using Dimension = plan::CopyDimension;

class Copy : public LibraryFunction {
 public:
  using Call = plan::CopyCall;

  Copy(const Call& call, const CallSite& site)
      : width_(call.elementBytes),
        sourceOffset_(call.sourceOffset),
        zeroBytes_(call.zero ? site.operandBytes(plan::kOperand<Call, "destination">) : 0) {
    chooseInner(plan::simplified(call.dimensions));
  }

  Status run(const Invocation& invocation) const override {
    const std::byte* source = invocation.operand<std::byte>(plan::kOperand<Call, "source">) + sourceOffset_ * width_;
    std::byte* destination = invocation.operand<std::byte>(plan::kOperand<Call, "destination">);
    if (zeroBytes_ > 0) {
      invocation.pool.run((zeroBytes_ + kItemBytes - 1) / kItemBytes, [&](int64_t item, int) {
        std::memset(destination + item * kItemBytes, 0, std::min(kItemBytes, zeroBytes_ - item * kItemBytes));
      });
    }
    // Pieces are given out in groups, so that small ones do not cost a visit to the pool each.
    const int64_t perItem = std::max<int64_t>(kItemBytes / pieceBytes(), 1);
    invocation.pool.run((pieces_ + perItem - 1) / perItem, [&](int64_t item, int) {
      for (int64_t piece = item * perItem, end = std::min(piece + perItem, pieces_); piece < end; ++piece) {
        const int64_t begin = piece % parts_ * part_;
        int64_t rest = piece / parts_, from = begin * split().source, to = begin * split().destination;
        for (size_t i = outer_.size(); i-- > 0;) {
          int64_t index = rest % outer_[i].size;
          rest /= outer_[i].size;
          from += index * outer_[i].source;
          to += index * outer_[i].destination;
        }
        copyPiece(source + from * width_, destination + to * width_, std::min(part_, split().size - begin));
      }
    });
    return Status();
  }

 private:
  static constexpr int64_t kItemBytes = 256 << 10;

  // The dimension that is cut into parts, so that threads can share a large matrix or run.
  const Dimension& split() const { return transposed_ ? across_ : inner_; }
  int64_t pieceBytes() const { return part_ * (transposed_ ? inner_.size : 1) * width_; }

  // The innermost dimension is copied by one loop; a transpose takes a second dimension into that loop.
  void chooseInner(std::vector<Dimension> dimensions) {
    if (!dimensions.empty()) {
      inner_ = dimensions.back();
      dimensions.pop_back();
    }
    if (width_ == 4 && inner_.destination == 1 && inner_.source != 1) {
      auto across =
          std::find_if(dimensions.begin(), dimensions.end(), [](const Dimension& d) { return d.source == 1; });
      if (across != dimensions.end()) {
        transposed_ = true;
        across_ = *across;
        dimensions.erase(across);
      }
    }
    outer_ = std::move(dimensions);
    // A multiple of 16, the width of a transposed block.
    const int64_t elements = kItemBytes / width_ / (transposed_ ? inner_.size : 1);
    part_ = std::min(split().size, std::max<int64_t>(elements / 16 * 16, 16));
    parts_ = (split().size + part_ - 1) / part_;
    pieces_ = parts_;
    for (const Dimension& d : outer_) pieces_ *= d.size;
  }

  // Copies `count` elements of the split dimension.
  void copyPiece(const std::byte* source, std::byte* destination, int64_t count) const {
    if (transposed_)
      loops().transpose(reinterpret_cast<const uint32_t*>(source), inner_.source,
                        reinterpret_cast<uint32_t*>(destination), across_.destination, inner_.size, count);
    else if (inner_.source == 1 && inner_.destination == 1)
      std::memcpy(destination, source, count * width_);
    else if (width_ == 4)
      copyAs<uint32_t>(source, destination, count);
    else if (width_ == 8)
      copyAs<uint64_t>(source, destination, count);
    else if (width_ == 2)
      copyAs<uint16_t>(source, destination, count);
    else
      copyAs<uint8_t>(source, destination, count);
  }

  template <typename T>
  void copyAs(const std::byte* source, std::byte* destination, int64_t count) const {
    const T* from = reinterpret_cast<const T*>(source);
    T* to = reinterpret_cast<T*>(destination);
    for (int64_t i = 0; i < count; ++i) to[i * inner_.destination] = from[i * inner_.source];
  }

  const int64_t width_, sourceOffset_, zeroBytes_;
  bool transposed_ = false;
  std::vector<Dimension> outer_;
  Dimension inner_{1, 1, 1}, across_{1, 1, 1};
  int64_t part_ = 1, parts_ = 1, pieces_ = 1;
};

}  // namespace

Function makeFunction(const plan::CopyCall& call, const CallSite& site) {
  return std::make_unique<Copy>(call, site);
}

}  // namespace sheaf::cpu
