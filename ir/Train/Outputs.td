// What the evaluation hands to the host. Apart from the other ops, which every pass sees: few meet these.
#ifndef SHEAF_TRAIN_OUTPUTS
#define SHEAF_TRAIN_OUTPUTS

include "ir/Train/TrainBase.td"

def Train_OutputOp : Train_Op<"output"> {
  let summary = "a value of the evaluation that the host receives";
  let description = [{
    `kind` is a word of plan.proto's OutputKind. Of a `tensor` the dimension `axis` holds `blocks` x rows x any number of
    elements; 0 blocks: it has no rows, and is the same on all ranks. The other kinds are single numbers, the same on all
    ranks. The function @evaluation, which holds these ops after the phase `train`, has loss and outputs of a batch; its
    argument with the attribute `train.row_mask` says which rows count.
  }];
  let arguments = (ins StrAttr:$kind, StrAttr:$name, Train_Tensor:$value, DefaultValuedAttr<I64Attr, "0">:$axis,
      DefaultValuedAttr<I64Attr, "0">:$blocks);
  let assemblyFormat = "$kind $name $value attr-dict `:` type($value)";
}

#endif
