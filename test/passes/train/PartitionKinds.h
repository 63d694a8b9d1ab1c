// The kinds of ops that partition_test divides, along every dimension.
#pragma once

#include <algorithm>
#include <string>

namespace sheaf::train {

// One op or a few, from %h [8, 6], %x [8, 6] and %n [8, 1] (labels from 0 to 5), to %y.
struct Kind {
  const char* name;
  const char* ops;
  const char* type;  // the shape of %y
};

inline const Kind kKinds[] = {
    {"elementwise", "%y = train.mul %h, %x : tensor<8x6xf64>", "8x6"},
    {"reduce-rows", "%y = train.reduce sum %h [1] : tensor<8x6xf64> -> tensor<8x1xf64>", "8x1"},
    {"reduce-batch", "%y = train.reduce sum %h [0] : tensor<8x6xf64> -> tensor<1x6xf64>", "1x6"},
    {"mean-batch", "%y = train.reduce mean %h [0] : tensor<8x6xf64> -> tensor<1x6xf64>", "1x6"},
    {"max-batch", "%y = train.reduce max %h [0] : tensor<8x6xf64> -> tensor<1x6xf64>", "1x6"},
    {"min-all", "%y = train.reduce min %h [0, 1] : tensor<8x6xf64> -> tensor<1x1xf64>", "1x1"},
    {"max-to-scalar", R"(%m = train.reduce max %h [0, 1] : tensor<8x6xf64> -> tensor<1x1xf64>
                         %s = train.reshape %m : tensor<1x1xf64> -> tensor<f64>
                         %y = train.reshape %s : tensor<f64> -> tensor<1x1xf64>)",
     "1x1"},
    {"product-batch", "%y = train.reduce prod %h [0] : tensor<8x6xf64> -> tensor<1x6xf64>", "1x6"},
    {"centred", R"(%s = train.reduce mean %h [0] : tensor<8x6xf64> -> tensor<1x6xf64>
                   %b = train.broadcast %s : tensor<1x6xf64> -> tensor<8x6xf64>
                   %y = train.sub %h, %b : tensor<8x6xf64>)",
     "8x6"},
    {"broadcast-of-term", R"(%s = train.reduce sum %h [0] : tensor<8x6xf64> -> tensor<1x6xf64>
                             %y = train.broadcast %s : tensor<1x6xf64> -> tensor<8x6xf64>)",
     "8x6"},
    {"term-squared", R"(%s = train.reduce sum %h [0] : tensor<8x6xf64> -> tensor<1x6xf64>
                        %y = train.mul %s, %s : tensor<1x6xf64>)",
     "1x6"},
    {"term-by-term", R"(%s = train.reduce sum %h [0] : tensor<8x6xf64> -> tensor<1x6xf64>
                        %t = train.reduce mean %x [0] : tensor<8x6xf64> -> tensor<1x6xf64>
                        %y = train.div %s, %t : tensor<1x6xf64>)",
     "1x6"},
    {"term-plus-whole", R"(%s = train.reduce sum %h [0] : tensor<8x6xf64> -> tensor<1x6xf64>
                           %c = train.constant dense<0.5> : tensor<1x6xf64>
                           %y = train.add %s, %c : tensor<1x6xf64>)",
     "1x6"},
    {"transpose", "%y = train.transpose %h [1, 0] : tensor<8x6xf64> -> tensor<6x8xf64>", "6x8"},
    {"reverse-batch", "%y = train.reverse %h [0] : tensor<8x6xf64>", "8x6"},
    {"reverse-columns", "%y = train.reverse %h [1] : tensor<8x6xf64>", "8x6"},
    {"cumsum-batch", "%y = train.cumsum %h axis 0 : tensor<8x6xf64>", "8x6"},
    {"cumsum-columns", "%y = train.cumsum %h axis 1 : tensor<8x6xf64>", "8x6"},
    {"softmax-columns", "%y = train.softmax %h : tensor<8x6xf64>", "8x6"},
    {"softmax-batch", R"(%t = train.transpose %h [1, 0] : tensor<8x6xf64> -> tensor<6x8xf64>
                         %y = train.softmax %t : tensor<6x8xf64>)",
     "6x8"},
    {"slice-batch", "%y = train.slice %h starts [1, 0] sizes [6, 6] steps [1, 1] : tensor<8x6xf64> -> tensor<6x6xf64>",
     "6x6"},
    {"slice-half", "%y = train.slice %h starts [4, 0] sizes [4, 6] steps [1, 1] : tensor<8x6xf64> -> tensor<4x6xf64>",
     "4x6"},
    {"slice-backwards",
     "%y = train.slice %h starts [7, 0] sizes [8, 6] steps [-1, 1] : tensor<8x6xf64> -> tensor<8x6xf64>", "8x6"},
    {"slice-columns",
     "%y = train.slice %h starts [0, 1] sizes [8, 2] steps [1, 2] : tensor<8x6xf64> -> tensor<8x2xf64>", "8x2"},
    {"pad-batch", "%y = train.pad %h low [1, 0] high [7, 0] interior [0, 0] : tensor<8x6xf64> -> tensor<16x6xf64>",
     "16x6"},
    {"pad-columns", "%y = train.pad %h low [0, 1] high [0, 2] interior [0, 0] : tensor<8x6xf64> -> tensor<8x9xf64>",
     "8x9"},
    {"concat-batch", "%y = train.concat %h, %x axis 0 : (tensor<8x6xf64>, tensor<8x6xf64>) -> tensor<16x6xf64>",
     "16x6"},
    {"views", R"(%c = train.concat %h, %x axis 0 : (tensor<8x6xf64>, tensor<8x6xf64>) -> tensor<16x6xf64>
                 %e = train.exp %c : tensor<16x6xf64>
                 %a = train.slice %e starts [0, 0] sizes [8, 6] steps [1, 1] : tensor<16x6xf64> -> tensor<8x6xf64>
                 %b = train.slice %e starts [8, 2] sizes [8, 3] steps [1, 1] : tensor<16x6xf64> -> tensor<8x3xf64>
                 %y = train.matmul %b, %a {transpose_a} : tensor<8x3xf64>, tensor<8x6xf64> -> tensor<3x6xf64>)",
     "3x6"},
    {"views-with-each-other",
     R"(%c = train.concat %h, %x axis 0 : (tensor<8x6xf64>, tensor<8x6xf64>) -> tensor<16x6xf64>
                                 %y = train.matmul %c, %c {transpose_b} : tensor<16x6xf64>, tensor<16x6xf64> -> tensor<16x16xf64>)",
     "16x16"},
    {"views-dropped", R"(%c = train.concat %h, %x axis 0 : (tensor<8x6xf64>, tensor<8x6xf64>) -> tensor<16x6xf64>
                         %y = train.dropout %c ratio 0.5 node 3 : tensor<16x6xf64>)",
     "16x6"},
    {"views-apart", R"(%c = train.concat %h, %x axis 0 : (tensor<8x6xf64>, tensor<8x6xf64>) -> tensor<16x6xf64>
                       %y = train.slice %c starts [4, 0] sizes [8, 6] steps [1, 1] : tensor<16x6xf64> -> tensor<8x6xf64>)",
     "8x6"},
    {"concat-columns", R"(%c = train.constant dense<0.5> : tensor<8x2xf64>
                          %y = train.concat %h, %c axis 1 : (tensor<8x6xf64>, tensor<8x2xf64>) -> tensor<8x8xf64>)",
     "8x8"},
    {"groups-of-2", R"(%g = train.reshape %h : tensor<8x6xf64> -> tensor<4x2x6xf64>
                       %y = train.reduce max %g [1] : tensor<4x2x6xf64> -> tensor<4x1x6xf64>)",
     "4x1x6"},
    {"groups-of-4", R"(%g = train.reshape %h : tensor<8x6xf64> -> tensor<2x4x6xf64>
                       %y = train.reduce max %g [1] : tensor<2x4x6xf64> -> tensor<2x1x6xf64>)",
     "2x1x6"},
    {"reshape-cuts-rows", R"(%g = train.reshape %h : tensor<8x6xf64> -> tensor<12x4xf64>
                 %y = train.softmax %g : tensor<12x4xf64>)",
     "12x4"},
    {"flat", R"(%g = train.reshape %h : tensor<8x6xf64> -> tensor<48xf64>
                %y = train.reshape %g : tensor<48xf64> -> tensor<8x2x3xf64>)",
     "8x2x3"},
    {"batch-in-inner-dimension", R"(%t = train.transpose %h [1, 0] : tensor<8x6xf64> -> tensor<6x8xf64>
                 %f = train.reshape %t : tensor<6x8xf64> -> tensor<48xf64>
                 %g = train.reshape %f : tensor<48xf64> -> tensor<3x16xf64>
                 %y = train.cumsum %g axis 1 : tensor<3x16xf64>)",
     "3x16"},
    {"matmul-rows", R"(%c = train.iota 0 : tensor<6x4xf64>
                       %y = train.matmul %h, %c : tensor<8x6xf64>, tensor<6x4xf64> -> tensor<8x4xf64>)",
     "8x4"},
    {"matmul-each-other",
     "%y = train.matmul %h, %x {transpose_b} : tensor<8x6xf64>, tensor<8x6xf64> -> tensor<8x8xf64>", "8x8"},
    {"matmul-summed", "%y = train.matmul %h, %x {transpose_a} : tensor<8x6xf64>, tensor<8x6xf64> -> tensor<6x6xf64>",
     "6x6"},
    {"matmul-summed-constant", R"(%c = train.iota 0 : tensor<8x3xf64>
                                  %y = train.matmul %h, %c {transpose_a} : tensor<8x6xf64>, tensor<8x3xf64> -> tensor<6x3xf64>)",
     "6x3"},
    {"matmul-batched", R"(%a = train.reshape %h : tensor<8x6xf64> -> tensor<8x2x3xf64>
                          %b = train.reshape %x : tensor<8x6xf64> -> tensor<8x3x2xf64>
                          %y = train.matmul %a, %b : tensor<8x2x3xf64>, tensor<8x3x2xf64> -> tensor<8x2x2xf64>)",
     "8x2x2"},
    {"gather-batch", R"(%i = train.constant dense<[3, -1, 0, 3]> : tensor<4xi64>
                        %y = train.gather %h[%i] axis 0 : tensor<8x6xf64>, tensor<4xi64> -> tensor<4x6xf64>)",
     "4x6"},
    {"gather-permutation", R"(%i = train.constant dense<[3, 7, 0, 1, 2, 6, 5, 4]> : tensor<8xi64>
                              %y = train.gather %h[%i] axis 0 : tensor<8x6xf64>, tensor<8xi64> -> tensor<8x6xf64>)",
     "8x6"},
    {"gather-own-labels", R"(%i = train.reshape %n : tensor<8x1xi64> -> tensor<8xi64>
                             %y = train.gather %h[%i] axis 0 : tensor<8x6xf64>, tensor<8xi64> -> tensor<8x6xf64>)",
     "8x6"},
    {"gather-columns", R"(%i = train.constant dense<[3, 0]> : tensor<2xi64>
                          %y = train.gather %h[%i] axis 1 : tensor<8x6xf64>, tensor<2xi64> -> tensor<8x2xf64>)",
     "8x2"},
    {"gather-elements-columns",
     "%y = train.gather_elements %h[%n] axis 1 : tensor<8x6xf64>, tensor<8x1xi64> -> tensor<8x1xf64>", "8x1"},
    {"gather-elements-batch",
     "%y = train.gather_elements %h[%n] axis 0 : tensor<8x6xf64>, tensor<8x1xi64> -> tensor<8x6xf64>", "8x6"},
    {"scatter-add-batch", R"(%i = train.reshape %n : tensor<8x1xi64> -> tensor<8xi64>
                             %z = train.constant dense<0.0> : tensor<1x6xf64>
                             %c = train.scatter_add %h[%i] axis 0 : tensor<8x6xf64>, tensor<8xi64> -> tensor<9x6xf64>
                             %y = train.exp %c : tensor<9x6xf64>)",
     "9x6"},
    {"scatter-add-into", R"(%d = train.constant dense<0.5> : tensor<7x6xf64>
                            %j = train.broadcast %n : tensor<8x1xi64> -> tensor<8x6xi64>
                            %y = train.scatter add %h[%j] into %d axis 0 : (tensor<8x6xi64>, tensor<8x6xf64>, tensor<7x6xf64>) -> tensor<7x6xf64>)",
     "7x6"},
    {"top-k-batch", R"(%i = train.top_k %h axis 0 k 3 {largest} : tensor<8x6xf64> -> tensor<3x6xi64>
                       %y = train.gather_elements %h[%i] axis 0 : tensor<8x6xf64>, tensor<3x6xi64> -> tensor<3x6xf64>)",
     "3x6"},
    {"top-k-columns", R"(%i = train.top_k %h axis 1 k 3 {largest} : tensor<8x6xf64> -> tensor<8x3xi64>
                         %y = train.gather_elements %h[%i] axis 1 : tensor<8x6xf64>, tensor<8x3xi64> -> tensor<8x3xf64>)",
     "8x3"},
    {"numbers", R"(%i = train.iota 0 : tensor<8x6xf64>
                   %y = train.mul %h, %i : tensor<8x6xf64>)",
     "8x6"},
    {"numbers-in-columns", R"(%i = train.iota 1 : tensor<8x6xf64>
                              %y = train.mul %h, %i : tensor<8x6xf64>)",
     "8x6"},
    {"numbers-computed", R"(%i = train.iota 0 : tensor<8x1xf64>
                            %e = train.sin %i : tensor<8x1xf64>
                            %b = train.broadcast %e : tensor<8x1xf64> -> tensor<8x6xf64>
                            %y = train.mul %h, %b : tensor<8x6xf64>)",
     "8x6"},
    {"constant-of-rows",
     R"(%c = train.constant dense<[[1.0], [2.0], [-1.0], [0.5], [3.0], [-2.0], [0.25], [1.5]]> : tensor<8x1xf64>
                            %b = train.broadcast %c : tensor<8x1xf64> -> tensor<8x6xf64>
                            %y = train.mul %h, %b : tensor<8x6xf64>)",
     "8x6"},
    {"repeating-constant",
     R"(%c = train.constant dense<[[1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [1.0, 2.0]]> : tensor<8x2xf64>
                              %y = train.concat %h, %c axis 1 : (tensor<8x6xf64>, tensor<8x2xf64>) -> tensor<8x8xf64>)",
     "8x8"},
    {"square-input-of-rows",
     R"(%k = train.matmul %x, %x {transpose_b} : tensor<8x6xf64>, tensor<8x6xf64> -> tensor<8x8xf64>
                                %y = train.matmul %k, %h : tensor<8x8xf64>, tensor<8x6xf64> -> tensor<8x6xf64>)",
     "8x6"},
    {"other-dimension", R"(%t = train.transpose %x [1, 0] : tensor<8x6xf64> -> tensor<6x8xf64>
                           %f = train.reshape %t : tensor<6x8xf64> -> tensor<8x6xf64>
                           %y = train.mul %h, %f : tensor<8x6xf64>)",
     "8x6"},
    {"labels-lost",
     R"(%l, %log = train.cross_entropy %h, %n : (tensor<8x6xf64>, tensor<8x1xi64>) -> (tensor<8x1xf64>, tensor<8x1xf64>)
                       %y = train.reduce mean %l [0] : tensor<8x1xf64> -> tensor<1x1xf64>)",
     "1x1"},
    {"counted", R"(%two = train.constant dense<2> : tensor<8x1xi64>
                   %c = train.compare gt %n, %two : tensor<8x1xi64>
                   %i = train.cast %c : tensor<8x1xi1> -> tensor<8x1xi64>
                   %s = train.reduce sum %i [0] : tensor<8x1xi64> -> tensor<1x1xi64>
                   %f = train.cast %s : tensor<1x1xi64> -> tensor<1x1xf64>
                   %t = train.reduce sum %h [0, 1] : tensor<8x6xf64> -> tensor<1x1xf64>
                   %y = train.div %t, %f : tensor<1x1xf64>)",
     "1x1"},
    {"stopped", "%y = train.stop_gradient %h : tensor<8x6xf64>", "8x6"},
    {"layer-norm", R"(%s = train.constant dense<0.5> : tensor<6xf64>
                      %y = train.layer_norm %h, %s epsilon 1.0e-3 : (tensor<8x6xf64>, tensor<6xf64>) -> tensor<8x6xf64>)",
     "8x6"},
    {"layer-norm-batch", R"(%t = train.transpose %h [1, 0] : tensor<8x6xf64> -> tensor<6x8xf64>
                            %s = train.constant dense<0.5> : tensor<8xf64>
                            %y = train.layer_norm %t, %s epsilon 1.0e-3 : (tensor<6x8xf64>, tensor<8xf64>) -> tensor<6x8xf64>)",
     "6x8"},
    {"rms-norm", R"(%s = train.constant dense<0.5> : tensor<6xf64>
                    %y = train.rms_norm %h, %s epsilon 1.0e-3 : (tensor<8x6xf64>, tensor<6xf64>) -> tensor<8x6xf64>)",
     "8x6"},
    {"log-softmax-batch", R"(%t = train.transpose %h [1, 0] : tensor<8x6xf64> -> tensor<6x8xf64>
                             %y = train.log_softmax %t : tensor<6x8xf64>)",
     "6x8"},
    {"attention", R"(%q = train.reshape %h : tensor<8x6xf64> -> tensor<8x3x1x2xf64>
                     %k = train.reshape %x : tensor<8x6xf64> -> tensor<8x3x1x2xf64>
                     %y, %l = train.attention %q, %k, %q scale 0.5 : (tensor<8x3x1x2xf64>, tensor<8x3x1x2xf64>, tensor<8x3x1x2xf64>) -> (tensor<8x3x1x2xf64>, tensor<8x1x3xf32>))",
     "8x3x1x2"},
    {"attention-over-batch", R"(%q = train.reshape %h : tensor<8x6xf64> -> tensor<1x8x3x2xf64>
                                %k = train.reshape %x : tensor<8x6xf64> -> tensor<1x8x3x2xf64>
                                %y, %l = train.attention %q, %k, %q scale 0.5 : (tensor<1x8x3x2xf64>, tensor<1x8x3x2xf64>, tensor<1x8x3x2xf64>) -> (tensor<1x8x3x2xf64>, tensor<1x3x8xf32>))",
     "1x8x3x2"},
    {"convolution", R"(%i = train.reshape %h : tensor<8x6xf64> -> tensor<8x1x2x3xf64>
                       %f = train.constant dense<[[[[0.5, -1.0]]]]> : tensor<1x1x1x2xf64>
                       %y = train.conv %i, %f {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (tensor<8x1x2x3xf64>, tensor<1x1x1x2xf64>) -> tensor<8x1x2x2xf64>)",
     "8x1x2x2"},
    {"convolution-over-batch", R"(%i = train.reshape %h : tensor<8x6xf64> -> tensor<1x1x8x6xf64>
                                  %f = train.constant dense<[[[[0.5], [-1.0]]]]> : tensor<1x1x2x1xf64>
                                  %y = train.conv %i, %f {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (tensor<1x1x8x6xf64>, tensor<1x1x2x1xf64>) -> tensor<1x1x7x6xf64>)",
     "1x1x7x6"},
    {"filters-of-rows", R"(%i = train.reshape %x : tensor<8x6xf64> -> tensor<8x1x2x3xf64>
                           %f = train.reshape %h : tensor<8x6xf64> -> tensor<8x1x2x3xf64>
                           %y = train.conv %i, %f {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (tensor<8x1x2x3xf64>, tensor<8x1x2x3xf64>) -> tensor<8x8x1x1xf64>)",
     "8x8x1x1"},
    {"max-pool", R"(%i = train.reshape %h : tensor<8x6xf64> -> tensor<8x1x2x3xf64>
                    %y = train.max_pool %i {kernel = array<i64: 2, 2>, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} : (tensor<8x1x2x3xf64>) -> tensor<8x1x1x2xf64>)",
     "8x1x1x2"},
    {"batch-norm", R"(%s = train.constant dense<0.5> : tensor<6xf64>
                      %y, %mean, %variance = train.batch_norm %h, %s, %s epsilon 1.0e-3 : (tensor<8x6xf64>, tensor<6xf64>, tensor<6xf64>) -> (tensor<8x6xf64>, tensor<6xf64>, tensor<6xf64>))",
     "8x6"},
    {"scatter-replace",
     R"(%u = train.slice %h starts [0, 0] sizes [8, 1] steps [1, 1] : tensor<8x6xf64> -> tensor<8x1xf64>
                           %y = train.scatter replace %u[%n] into %x axis 1 : (tensor<8x1xi64>, tensor<8x1xf64>, tensor<8x6xf64>) -> tensor<8x6xf64>)",
     "8x6"},
    {"scatter-replace-batch", R"(%i = train.constant dense<[[1], [5]]> : tensor<2x1xi64>
                                 %j = train.broadcast %i : tensor<2x1xi64> -> tensor<2x6xi64>
                                 %u = train.slice %h starts [3, 0] sizes [2, 6] steps [1, 1] : tensor<8x6xf64> -> tensor<2x6xf64>
                                 %y = train.scatter replace %u[%j] into %h axis 0 : (tensor<2x6xi64>, tensor<2x6xf64>, tensor<8x6xf64>) -> tensor<8x6xf64>)",
     "8x6"},
    {"dropped", "%y = train.dropout %h ratio 0.5 node 3 : tensor<8x6xf64>", "8x6"},
    {"dropped-columns-first", R"(%t = train.transpose %h [1, 0] : tensor<8x6xf64> -> tensor<6x8xf64>
                                 %y = train.dropout %t ratio 0.5 node 3 : tensor<6x8xf64>)",
     "6x8"},
    {"dropped-time-first", R"(%r = train.reshape %h : tensor<8x6xf64> -> tensor<8x3x2xf64>
                              %t = train.transpose %r [1, 0, 2] : tensor<8x3x2xf64> -> tensor<3x8x2xf64>
                              %y = train.dropout %t ratio 0.5 node 3 : tensor<3x8x2xf64>)",
     "3x8x2"},
    {"dropped-whole", R"(%c = train.constant dense<0.5> : tensor<5x6xf64>
                         %d = train.dropout %c ratio 0.5 node 3 : tensor<5x6xf64>
                         %y = train.matmul %h, %d {transpose_b} : tensor<8x6xf64>, tensor<5x6xf64> -> tensor<8x5xf64>)",
     "8x5"},
    {"dropped-sum", R"(%s = train.reduce sum %h [0] : tensor<8x6xf64> -> tensor<1x6xf64>
                       %y = train.dropout %s ratio 0.5 node 3 : tensor<1x6xf64>)",
     "1x6"},
    {"random-columns-first", R"(%t = train.transpose %h [1, 0] : tensor<8x6xf64> -> tensor<6x8xf64>
                                %u = train.random_uniform like %t node 4 : tensor<6x8xf64> -> tensor<6x8xf32>
                                %n64 = train.cast %u : tensor<6x8xf32> -> tensor<6x8xf64>
                                %y = train.mul %n64, %t : tensor<6x8xf64>)",
     "6x8"},
};

// The step of a batch of 8 rows whose loss and gradient depend on every element of a kind's %y.
inline std::string stepOf(const Kind& kind, int64_t leaves) {
  const std::string ops = kind.ops, type = kind.type;
  const std::string tensor = "tensor<" + type + "xf64>";
  std::string axes, ones;
  for (size_t d = 0; d <= size_t(std::count(type.begin(), type.end(), 'x')); ++d)
    axes += (d ? ", " : "") + std::to_string(d), ones += "1x";
  return "module attributes {train.ranks = " + std::to_string(leaves) + R"( : i64} {
  train.parameter @w : tensor<6x6xf64> {trainable = true}
  func.func @step(%x: tensor<8x6xf64> {train.name = "x"}, %n: tensor<8x1xi64> {train.name = "n"}) {
    %w = train.read @w : tensor<6x6xf64>
    %h = train.matmul %x, %w : tensor<8x6xf64>, tensor<6x6xf64> -> tensor<8x6xf64>
    )" + ops +
         "\n%place = train.iota " + std::to_string(std::count(type.begin(), type.end(), 'x')) + " : " + tensor + R"(
    %turned = train.cos %place : )" +
         tensor + "\n%much = train.mul %y, %turned : " + tensor + "\n%square = train.mul %much, %y : " + tensor +
         "\n%sum = train.reduce sum %square [" + axes + "] : " + tensor + " -> tensor<" + ones + R"(f64>
    %weighted = train.reduce sum %much [)" +
         axes + "] : " + tensor + " -> tensor<" + ones + R"(f64>
    %both = train.add %sum, %weighted : tensor<)" +
         ones + R"(f64>
    %all = train.reshape %both : tensor<)" +
         ones + R"(f64> -> tensor<f64>
    %ww = train.mul %w, %w : tensor<6x6xf64>
    %decay = train.reduce sum %ww [0, 1] : tensor<6x6xf64> -> tensor<1x1xf64>
    %penalty = train.reshape %decay : tensor<1x1xf64> -> tensor<f64>
    %loss = train.add %all, %penalty : tensor<f64>
    train.loss %loss : tensor<f64>
    return
  }
})";
}

}  // namespace sheaf::train
