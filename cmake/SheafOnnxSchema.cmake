# Compiles ONNX's schema, frontend/onnx/schema/onnx/onnx-ml.proto, with Debian's protoc (lite runtime).
# Debian's libonnx is older and lacks the metadata fields that exporters write; see docs/onnx.md.
find_package(Protobuf REQUIRED)
set(SHEAF_ONNX_SCHEMA "${PROJECT_SOURCE_DIR}/frontend/onnx/schema")

# SheafOnnxSchema: the schema's C++ classes (lite runtime), a plain library: MLIR's flags stay out of generated code.
set(SHEAF_ONNX_GENERATED "${PROJECT_BINARY_DIR}/third_party/onnx-schema")
file(MAKE_DIRECTORY "${SHEAF_ONNX_GENERATED}")
add_custom_command(
  OUTPUT "${SHEAF_ONNX_GENERATED}/onnx/onnx-ml.pb.cc" "${SHEAF_ONNX_GENERATED}/onnx/onnx-ml.pb.h"
  COMMAND protobuf::protoc --proto_path=${SHEAF_ONNX_SCHEMA} --cpp_out=${SHEAF_ONNX_GENERATED} onnx/onnx-ml.proto
  DEPENDS "${SHEAF_ONNX_SCHEMA}/onnx/onnx-ml.proto"
  COMMENT "Compiling ONNX's schema" VERBATIM)
add_library(SheafOnnxSchema STATIC "${SHEAF_ONNX_GENERATED}/onnx/onnx-ml.pb.cc" "${SHEAF_ONNX_GENERATED}/onnx/onnx-ml.pb.h")
target_include_directories(SheafOnnxSchema SYSTEM PUBLIC "${SHEAF_ONNX_GENERATED}" ${Protobuf_INCLUDE_DIRS})
target_link_libraries(SheafOnnxSchema PUBLIC protobuf::libprotobuf-lite)
