// Every row of plan::kElements as MLIR's type and as ONNX's.
#include <gtest/gtest.h>

#include <string>

#include "frontend/onnx/importer/Model.h"
#include "ir/Train/ElementTypes.h"
#include "mlir/IR/MLIRContext.h"
#include "onnx/onnx-ml.pb.h"

namespace sheaf {
namespace {

TEST(MlirTypes, EveryTypeOfPlansHasOne) {
  mlir::MLIRContext context(mlir::MLIRContext::Threading::DISABLED);
  for (const plan::ElementFacts& row : plan::kElements) {
    if (!row.inPlans()) continue;
    const mlir::Type type = train::elementType(&context, row.type);
    EXPECT_EQ(&train::elementFacts(type), &row) << row.name;
    EXPECT_EQ(train::planType(type), row.type) << row.name;
    EXPECT_EQ(type.getIntOrFloatBitWidth(), unsigned(row.bits)) << row.name;
    EXPECT_EQ(mlir::isa<mlir::FloatType>(type), row.isFloat()) << row.name;
    EXPECT_EQ(train::isWidened(type), row.isWidened()) << row.name;
  }
  const mlir::Type none[] = {mlir::IndexType::get(&context), mlir::Float8E5M2Type::get(&context),
                             mlir::IntegerType::get(&context, 7),
                             mlir::IntegerType::get(&context, 32, mlir::IntegerType::Unsigned)};
  for (mlir::Type type : none) EXPECT_EQ(train::planType(type), plan::ELEMENT_TYPE_UNSPECIFIED);
}

// "FLOAT", "BFLOAT16", "UINT8", ...
std::string onnxName(const plan::ElementFacts& row) {
  const std::string bits = std::to_string(row.bits);
  switch (row.kind) {
    case plan::NumberKind::kFloat:
      if (row.bits >= 32) return row.bits == 32 ? "FLOAT" : "DOUBLE";
      return (row.name.starts_with("b") ? "BFLOAT" : "FLOAT") + bits;
    case plan::NumberKind::kSigned:
      return "INT" + bits;
    case plan::NumberKind::kUnsigned:
      return "UINT" + bits;
    default:
      return "BOOL";
  }
}

TEST(MlirTypes, NumbersAreThoseOfOnnx) {
  mlir::MLIRContext context(mlir::MLIRContext::Threading::DISABLED);
  for (const plan::ElementFacts& row : plan::kElements) {
    if (row.onnx == 0) continue;
    EXPECT_EQ(onnx::TensorProto::DataType_Name(static_cast<onnx::TensorProto::DataType>(row.onnx)), onnxName(row));
    const mlir::Type type = frontend::elementType(&context, row.onnx);
    EXPECT_EQ(bool(type), row.inPlans()) << row.name;
    EXPECT_EQ(frontend::isFloatType(row.onnx), row.isFloat()) << row.name;
    if (type) {
      EXPECT_EQ(train::planType(type), row.type) << row.name;
    }
  }
  for (int32_t number : {-1, 0, 8, 14, 15, 1000}) {
    EXPECT_FALSE(frontend::elementType(&context, number)) << number;
    EXPECT_FALSE(frontend::isFloatType(number)) << number;
  }
}

}  // namespace
}  // namespace sheaf
