// Gradient rules of `train` ops.
#include "ir/Train/TrainDialect.h"

using namespace mlir;
using namespace sheaf::train;

void AbsOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void AddOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void AttentionOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void BroadcastOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void CastOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void CeilOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void ConcatOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void ConvOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void CosOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void CrossEntropyOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void CumSumOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void DivOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void DropoutOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void ErfOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void ExpOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void FloorOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void FmaOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void GatherOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void GeluOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void GlobalSumOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void LayerNormOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void LogOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void LogSoftmaxOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void MatMulOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void MaxOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void MaxPoolOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void MinOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void ModOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void MulOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void NegOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void PadOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void PowOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void ReciprocalOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void ReduceOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void ReluOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void ReshapeOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void ReverseOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void RmsNormOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void RoundOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void RsqrtOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void ScatterAddOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void SelectOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void SigmoidOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void SignOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void SinOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void SliceOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void SoftmaxOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void SqrtOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void SubOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void TanhOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
void TransposeOp::buildGradient(OpBuilder&, ValueRange, SmallVectorImpl<Value>& gradients) { gradients.resize(getOperation()->getNumOperands()); }
