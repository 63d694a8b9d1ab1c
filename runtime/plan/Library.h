// The library calls a plan may make: names, operands, attributes, what they access and the scratch they need. Known to
// the compiler, which emits them, to the loader, which checks them, and to the devices, which run them.
//
// Operands are dense row-major unless strides are given; strides and counts are in elements of the operand's type, f32
// unless said otherwise; "[a]" is an attribute. Optional operands are marked with ?. Operands marked * have the type of
// the attribute "type" (ElementType): f32 (also if it is absent) or bf16. All arithmetic is in f32, and a bf16 result
// is rounded once.
//
//   gemm              a*, b*, (side*), c*, (also*): c = op(a) op(b); [m, n, k, batch, transpose_a, transpose_b, lda,
//                     ldb, ldc, stride_a, stride_b, stride_c (between batches), epilogue (Epilogue, which says what
//                     side and also are), tf32 (f32 operands may be rounded to TF32, where that is fast)]
//   attention         query*, key*, value*, (mask if [mask]), result*, log_sum_exp: train.attention; [b, s, t, h, g, d,
//                     e, causal, window (of causal attention: the keys that a query sees at most; 0: all), mask,
//                     mask_b, mask_h, query_row, key_row, value_row, result_row (elements from one token to the next;
//                     heads are contiguous within a token; batches follow each other)] [scale]
//   attention_grad    query*, key*, value*, result*, log_sum_exp, gradient*, (mask), query_gradient*, key_gradient*,
//                     value_gradient*; the attributes of attention and [gradient_row, query_gradient_row,
//                     key_gradient_row, value_gradient_row]
//   gather            data [outer, rows, inner], indices [count] of [index_bytes], result [outer, count, inner];
//                     [outer, rows, inner, count, element_bytes, index_bytes]; an index outside [-rows, rows) is an
//                     error
//   scatter_add       update* [outer, count, inner], indices, result* [outer, rows, inner]: zeroed, then added in the
//                     order of the indices; [outer, rows, inner, count, index_bytes]
//   copy              source, destination; [element_bytes, rank, size0.., source_stride0.., destination_stride0..,
//                     source_offset, zero]: strided copy, from source_offset on; strides may be negative; with [zero]
//                     the whole destination operand is zeroed before
//   sum_partials      source [p, c], destination* [c]: rows added in order; [p, c]
//   cumsum            source, destination [outer, n, inner]; [outer, n, inner, exclusive, reverse, type (ElementType)]
//   dropout           source, destination [count]: train.dropout; element i has global index data_index * count + i;
//                     [count, node] [ratio]; seed from Plan.training, step from the step
//   conv              input, filter, result; [n, c, h, w, o, kh, kw, oh, ow, stride_h, stride_w, pad_top, pad_left,
//                     pad_bottom, pad_right, dilation_h, dilation_w, groups, tf32]
//   conv_grad_input   gradient, filter, result; as conv
//   conv_grad_filter  input, gradient, result; as conv
//   max_pool          input, result; as conv without o and groups
//   max_pool_grad     input, gradient, result; as max_pool
//   square_sum        source* [n], destination f64 [1]: the sum of squares in f64, by fixed blocks of 4,096; [n]
//   gradient_norm     partials f64 [ranks, buckets], norm f64 [1], scalars [2] = clip scale, finite, (max_norm [1] if
//                     [clip]): the norm is the root of the sum over buckets, then ranks; [ranks, buckets, clip]
//   zero              destination: fills with zero bytes
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::plan {

// A call without operands.
LibraryCall libraryCall(const std::string& function, const std::vector<std::pair<const char*, int64_t>>& integers,
                        const std::vector<std::pair<const char*, double>>& reals = {});

// The value of an integer attribute, 0 if absent.
int64_t integer(const LibraryCall& call, std::string_view name);
// The value of a real attribute, 0 if absent.
double real(const LibraryCall& call, std::string_view name);

// The attribute "type"; f32 if absent.
ElementType elementType(const LibraryCall& call);

// What a gemm of one batch does besides, as train.matmul_epilogue: with p = op(a) op(b) and gelu the tanh form of GELU,
enum class Epilogue : int64_t {
  kNone = 0,
  kBias = 1,      // c = p + side [n]
  kGelu = 2,      // c = gelu(p), also [m, n] = p
  kBiasGelu = 3,  // c = gelu(p + side [n]), also [m, n] = p + side
  kGeluGrad = 4,  // c = p gelu'(side [m, n])
  kSumA = 5,      // c = p, also [m] = the sum of op(a) over k; a is transposed
  kSumB = 6,      // c = p, also [n] = the sum of op(b) over k; b is not transposed
};
Epilogue epilogue(const LibraryCall& gemm);

// Scratch bytes one thread needs to run the call; 0 for most.
uint64_t scratchPerThread(const LibraryCall& call);

// Scratch bytes a GPU needs to run the call; 0 for many.
uint64_t deviceScratch(const LibraryCall& call);

// Which devices a call must have scratch for.
struct Devices {
  bool cpu = true, gpu = false;
};

// Checks that the function exists, that its attributes are in range and that everything it accesses lies within its
// operands' bytes with the right access. The message names function, operand and both sizes.
Status checkLibraryCall(const LibraryCall& call, int64_t ranks, uint32_t maxThreads, Devices devices = {});

// Bytes that the library itself may allocate while running calls of this plan (oneDNN packs GEMM operands), for one
// rank with max_threads threads.
uint64_t libraryBytes(const Plan& plan);

}  // namespace sheaf::plan
