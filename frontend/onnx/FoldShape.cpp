// Folding of the operators that move elements.
#include "frontend/onnx/Fold.h"
#include "frontend/onnx/FoldDetail.h"

using namespace mlir;

namespace sheaf::frontend::fold {
namespace {

// Whether data of `dims` repeats itself along dimension d.
template <class T>
bool repeats(const std::vector<T>& data, ArrayRef<int64_t> dims, size_t d) {
  int64_t inner = 1, outer = 1;
  for (size_t i = 0; i < dims.size(); ++i) (i < d ? outer : inner) *= i == d ? 1 : dims[i];
  for (int64_t o = 0; o < outer; ++o) {
    const T* slice = data.data() + o * dims[d] * inner;
    for (int64_t i = 1; i < dims[d]; ++i)
      if (!std::equal(slice, slice + inner, slice + i * inner)) return false;
  }
  return true;
}

// Elements of x (strides `from`, first element at `offset`) in the row-major order of `stored`.
Result copy(const Constant& x, ArrayRef<int64_t> shape, ArrayRef<int64_t> stored, const Shape& from, int64_t offset) {
  auto count = foldable(stored, x.type);
  if (!count) return {};
  return dispatch(x.type, [&](auto sample) -> Result {
    using T = decltype(sample);
    std::vector<T> out(*count);
    const auto& in = values<T>(x);
    walk<1>(stored, {from},
            [&](int64_t at, auto offsets, auto step, int64_t length) {
              for (int64_t i = 0; i < length; ++i) out[at + i] = in[offsets[0] + i * step[0]];
            },
            {offset});
    return Constant{x.type, Shape(shape), Shape(stored), store(std::move(out))};
  });
}

Constant share(const Constant& x, ArrayRef<int64_t> shape, ArrayRef<int64_t> stored) {
  return {x.type, Shape(shape), Shape(stored), x.data};
}

// A valid index, from the end if negative; -1 if out of range.
int64_t normalized(int64_t index, int64_t size) {
  if (index < 0) index += size;
  return index >= 0 && index < size ? index : -1;
}

}  // namespace

Constant finish(Type type, ArrayRef<int64_t> shape, ArrayRef<int64_t> stored, Storage data) {
  Shape dims(stored);
  std::visit(
      [&](auto& elements) {
        for (size_t d = 0; d < dims.size() && !elements.empty(); ++d) {
          if (dims[d] == 1 || !repeats(elements, dims, d)) continue;
          int64_t inner = 1, outer = 1;
          for (size_t i = 0; i < dims.size(); ++i) (i < d ? outer : inner) *= i == d ? 1 : dims[i];
          for (int64_t o = 1; o < outer; ++o)
            std::copy_n(elements.begin() + o * dims[d] * inner, inner, elements.begin() + o * inner);
          elements.resize(outer * inner);
          dims[d] = 1;
        }
      },
      data);
  return {type, Shape(shape), dims, store(std::move(data))};
}

Result expand(const Constant& x, ArrayRef<bool> mask) {
  Shape stored = x.stored;
  for (size_t d = 0; d < stored.size(); ++d)
    if (mask[d]) stored[d] = x.shape[d];
  if (stored == x.stored) return x;
  return copy(x, x.shape, stored, strides(x), 0);
}

Constant full(const Constant& x) {
  Result result = x.isSplat() ? x : expand(x, SmallVector<bool>(x.shape.size(), true));
  return result.value_or(x);
}

Result reshape(const Constant& x, ArrayRef<int64_t> shape) {
  if (llvm::is_contained(shape, 0)) return splat(x.type, shape, 0);
  if (x.isSplat()) return share(x, shape, Shape(shape.size(), 1));
  if (x.stored == x.shape) return share(x, shape, shape);
  // Shapes split into groups of dimensions with equal products; a group stays stored once or in full.
  Shape stored(shape.size(), 1);
  SmallVector<bool> mask(x.shape.size());
  for (size_t i = 0, j = 0; i < x.shape.size() || j < shape.size();) {
    size_t beginI = i, beginJ = j;
    int64_t a = i < x.shape.size() ? x.shape[i++] : 1, b = j < shape.size() ? shape[j++] : 1;
    while (a != b) {
      if (a < b && i < x.shape.size())
        a *= x.shape[i++];
      else if (b < a && j < shape.size())
        b *= shape[j++];
      else
        return {};
    }
    bool full = false;
    for (size_t d = beginI; d < i; ++d) full |= x.stored[d] > 1;
    for (size_t d = beginI; full && d < i; ++d) mask[d] = true;
    for (size_t d = beginJ; full && d < j; ++d) stored[d] = shape[d];
  }
  Result whole = expand(x, mask);
  if (!whole) return {};
  return share(*whole, shape, stored);
}

Result broadcast(const Constant& x, ArrayRef<int64_t> shape) {
  if (llvm::is_contained(shape, 0)) return splat(x.type, shape, 0);
  Shape stored = x.stored;
  return share(x, shape, stored);
}

Result transpose(const Constant& x, ArrayRef<int64_t> permutation) {
  Shape shape, stored, from, all = strides(x);
  int64_t previous = -1;
  bool moves = false;
  for (int64_t p : permutation) {
    shape.push_back(x.shape[p]);
    stored.push_back(x.stored[p]);
    from.push_back(all[p]);
    if (x.stored[p] == 1) continue;
    moves |= p < previous;
    previous = p;
  }
  return moves ? copy(x, shape, stored, from, 0) : share(x, shape, stored);
}

Result slice(const Constant& x, ArrayRef<int64_t> starts, ArrayRef<int64_t> sizes, ArrayRef<int64_t> steps) {
  if (llvm::is_contained(sizes, 0)) return splat(x.type, sizes, 0);
  Shape stored(sizes), from = strides(x);
  int64_t offset = 0;
  bool whole = true;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (x.stored[d] == 1) {
      stored[d] = 1;
      continue;
    }
    whole &= starts[d] == 0 && steps[d] == 1 && sizes[d] == x.shape[d];
    offset += starts[d] * from[d];
    from[d] *= steps[d];
  }
  return whole ? share(x, sizes, stored) : copy(x, sizes, stored, from, offset);
}

Result concat(ArrayRef<Constant> operands, int64_t axis) {
  Shape shape = operands[0].shape, stored(shape.size(), 1);
  shape[axis] = 0;
  for (const Constant& x : operands) {
    shape[axis] += x.shape[axis];
    for (size_t d = 0; d < stored.size(); ++d) stored[d] = std::max(stored[d], x.stored[d]);
  }
  for (const Constant& x : operands)
    if (x.shape[axis] == shape[axis]) return x;  // the others are empty
  stored[axis] = shape[axis];
  for (size_t d = 0; d < stored.size(); ++d)
    if (shape[d] == 0) stored[d] = 0;
  auto count = foldable(stored, operands[0].type);
  if (!count) return {};
  Constant target{operands[0].type, shape, stored, nullptr};
  Shape to = strides(target);
  return dispatch(target.type, [&](auto sample) -> Result {
    using T = decltype(sample);
    std::vector<T> out(*count);
    int64_t offset = 0;
    for (const Constant& x : operands) {
      Shape dims = stored;
      dims[axis] = x.shape[axis];
      const auto& in = values<T>(x);
      if (!in.empty())
        walk<2>(dims, {to, strides(x)},
                [&](int64_t, auto at, auto step, int64_t length) {
                  for (int64_t i = 0; i < length; ++i) out[at[0] + i * step[0]] = in[at[1] + i * step[1]];
                },
                {offset, 0});
      offset += x.shape[axis] * to[axis];
    }
    return finish(target.type, shape, stored, std::move(out));
  });
}

Result gather(const Constant& data, const Constant& indices, int64_t axis) {
  Shape shape(ArrayRef<int64_t>(data.shape).take_front(axis)), stored(ArrayRef<int64_t>(data.stored).take_front(axis));
  int64_t before = shape.size();
  bool constant = data.stored[axis] == 1;  // the same whatever the index
  const auto& at = values<int64_t>(indices);
  for (int64_t index : at)
    if (normalized(index, data.shape[axis]) < 0) return {};
  llvm::append_range(shape, indices.shape);
  if (constant)
    stored.append(indices.shape.size(), 1);
  else
    llvm::append_range(stored, indices.stored);
  llvm::append_range(shape, ArrayRef<int64_t>(data.shape).drop_front(axis + 1));
  llvm::append_range(stored, ArrayRef<int64_t>(data.stored).drop_front(axis + 1));
  if (llvm::is_contained(shape, 0)) return splat(data.type, shape, 0);
  auto count = foldable(stored, data.type);
  if (!count) return {};
  Shape from(stored.size()), pick(stored.size()), all = strides(data), index = strides(indices);
  for (int64_t d = 0; d < int64_t(stored.size()); ++d) {
    int64_t i = d - before;
    if (i < 0)
      from[d] = all[d];
    else if (i < int64_t(index.size()))
      pick[d] = constant ? 0 : index[i];
    else
      from[d] = all[axis + 1 + i - index.size()];
  }
  int64_t stride = all[axis];
  return dispatch(data.type, [&](auto sample) -> Result {
    using T = decltype(sample);
    std::vector<T> out(*count);
    const auto& in = values<T>(data);
    walk<2>(stored, {from, pick}, [&](int64_t to, auto offset, auto step, int64_t length) {
      for (int64_t i = 0; i < length; ++i) {
        int64_t index = normalized(at[offset[1] + i * step[1]], data.shape[axis]);
        out[to + i] = in[offset[0] + i * step[0] + index * stride];
      }
    });
    return finish(data.type, shape, stored, std::move(out));
  });
}

Result gatherNd(const Constant& data, const Constant& indices) {
  int64_t rank = indices.shape.size() - 1, tuple = indices.shape.back();
  SmallVector<bool> mask(rank + 1);
  mask[rank] = true;
  Result tuples = expand(indices, mask);
  if (!tuples) return {};
  Shape shape(ArrayRef<int64_t>(indices.shape).drop_back()), stored(ArrayRef<int64_t>(tuples->stored).drop_back());
  llvm::append_range(shape, ArrayRef<int64_t>(data.shape).drop_front(tuple));
  llvm::append_range(stored, ArrayRef<int64_t>(data.stored).drop_front(tuple));
  if (llvm::is_contained(shape, 0)) return splat(data.type, shape, 0);
  auto count = foldable(stored, data.type);
  if (!count) return {};
  Shape from(stored.size()), pick(stored.size()), all = strides(data), index = strides(*tuples);
  for (int64_t d = 0; d < int64_t(stored.size()); ++d)
    (d < rank ? pick[d] : from[d]) = d < rank ? index[d] : all[tuple + d - rank];
  const auto& at = values<int64_t>(*tuples);
  for (int64_t i = 0; i < int64_t(at.size()); ++i)
    if (normalized(at[i], data.shape[i % tuple]) < 0) return {};
  return dispatch(data.type, [&](auto sample) -> Result {
    using T = decltype(sample);
    std::vector<T> out(*count);
    const auto& in = values<T>(data);
    walk<2>(stored, {from, pick}, [&](int64_t to, auto offset, auto step, int64_t length) {
      for (int64_t i = 0; i < length; ++i) {
        int64_t source = offset[0] + i * step[0];
        for (int64_t k = 0; k < tuple; ++k)
          source += normalized(at[offset[1] + i * step[1] + k], data.shape[k]) * all[k];
        out[to + i] = in[source];
      }
    });
    return finish(data.type, shape, stored, std::move(out));
  });
}

Result cumsum(const Constant& x, int64_t axis, bool exclusive, bool reverse) {
  SmallVector<bool> mask(x.shape.size());
  mask[axis] = true;
  Result whole = expand(x, mask);
  if (!whole || isBool(x.type)) return {};
  int64_t inner = 1, outer = 1, size = whole->stored[axis];
  for (int64_t d = 0; d < int64_t(x.shape.size()); ++d) (d < axis ? outer : inner) *= d == axis ? 1 : whole->stored[d];
  return dispatch(x.type, [&](auto sample) -> Result {
    using T = decltype(sample);
    std::vector<T> out(values<T>(*whole));
    for (int64_t o = 0; o < outer; ++o)
      for (int64_t i = 0; i < inner; ++i) {
        T sum = 0;
        for (int64_t k = 0; k < size; ++k) {
          T& element = out[(o * size + (reverse ? size - 1 - k : k)) * inner + i];
          T value = element;
          T next;
          if constexpr (std::is_same_v<T, int64_t>)
            next = T(uint64_t(sum) + uint64_t(value));
          else
            next = sum + value;
          element = exclusive ? sum : next;
          sum = next;
        }
      }
    return finish(x.type, x.shape, whole->stored, std::move(out));
  });
}

}  // namespace sheaf::frontend::fold
