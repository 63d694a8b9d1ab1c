// Limits of what handlers of operators compute themselves, besides what the emitter folds (Emitter.h).
#pragma once

#include <cstdint>

namespace sheaf::frontend {

// Elements of a table, such as the weights of an interpolation or the matrix of a Fourier transform: 128 MiB as f64.
inline constexpr int64_t kMaxTable = int64_t(1) << 24;

}  // namespace sheaf::frontend
