// Batch normalization, with a header of its own (BatchNorm.h): few files need it.
#ifndef SHEAF_TRAIN_BATCH_NORM
#define SHEAF_TRAIN_BATCH_NORM

include "ir/Train/TrainBase.td"

def Train_BatchNormOp : Train_DiffOp<"batch_norm", [Infer]> {
  let summary = "(x - mean) / sqrt(variance + epsilon) * scale + bias, by the batch's moments of each channel";
  let description = [{
    operand [N, C, ...], with `channels_last` [N, ..., C]; scale and bias [C]. The moments are the mean and the population
    variance over all dimensions but the channels; they are the other two results, [C], in f32 (f64 for f64), and have no
    gradient. With `ranks` above 1 they are the moments of the rows of that many ranks, each of which has as many rows.
    `local`: whatever the number of leaves, they are those of this leaf's rows; `train-partition` reads it and sets
    `ranks`.

    ```mlir
    %y, %mean, %variance = train.batch_norm %x, %scale, %bias epsilon 1.0e-5 {ranks = 4 : i64}
        : (tensor<8x16x4x4xf32>, tensor<16xf32>, tensor<16xf32>) -> (tensor<8x16x4x4xf32>, tensor<16xf32>, tensor<16xf32>)
    ```
  }];
  let arguments = (ins Train_FloatTensor:$operand, Train_FloatTensor:$scale, Train_FloatTensor:$bias, F64Attr:$epsilon,
      DefaultValuedAttr<I64Attr, "1">:$ranks, UnitAttr:$local, UnitAttr:$channels_last);
  let results = (outs Train_FloatTensor : $result, Train_FloatTensor : $mean, Train_FloatTensor : $variance);
  let assemblyFormat =
      "$operand `,` $scale `,` $bias `epsilon` $epsilon attr-dict `:` functional-type(operands, results)";
}

#endif
