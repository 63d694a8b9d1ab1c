# The ONNX schema: onnx-ml.proto of the pinned `onnx` package from PyPI, compiled with Debian's protoc (lite runtime).
# Debian's libonnx is older and lacks the metadata fields that exporters write; see docs/onnx.md.
find_package(Protobuf REQUIRED)
set(SHEAF_ONNX_PACKAGE "onnx==1.23.2" CACHE STRING "The PyPI package whose schema is used")
set(SHEAF_ONNX_DIR "${PROJECT_BINARY_DIR}/third_party/onnx" CACHE PATH "Where the package is unpacked")

if(NOT EXISTS "${SHEAF_ONNX_DIR}/onnx/onnx-ml.proto")
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  message(STATUS "Fetching ${SHEAF_ONNX_PACKAGE} for its schema")
  execute_process(
    COMMAND ${Python3_EXECUTABLE} -m pip install --quiet --no-deps --disable-pip-version-check --no-compile --root-user-action ignore
            --target ${SHEAF_ONNX_DIR} ${SHEAF_ONNX_PACKAGE}
    RESULT_VARIABLE failed)
  if(failed OR NOT EXISTS "${SHEAF_ONNX_DIR}/onnx/onnx-ml.proto")
    message(FATAL_ERROR "could not fetch ${SHEAF_ONNX_PACKAGE} from PyPI; set SHEAF_ONNX_DIR to a folder that has onnx/onnx-ml.proto")
  endif()
endif()

# SheafOnnxSchema: the schema's C++ classes (lite runtime), a plain library: MLIR's flags stay out of generated code.
set(SHEAF_ONNX_GENERATED "${PROJECT_BINARY_DIR}/third_party/onnx-schema")
file(MAKE_DIRECTORY "${SHEAF_ONNX_GENERATED}")
add_custom_command(
  OUTPUT "${SHEAF_ONNX_GENERATED}/onnx/onnx-ml.pb.cc" "${SHEAF_ONNX_GENERATED}/onnx/onnx-ml.pb.h"
  COMMAND protobuf::protoc --proto_path=${SHEAF_ONNX_DIR} --cpp_out=${SHEAF_ONNX_GENERATED} onnx/onnx-ml.proto
  DEPENDS "${SHEAF_ONNX_DIR}/onnx/onnx-ml.proto"
  COMMENT "Compiling ONNX's schema" VERBATIM)
add_library(SheafOnnxSchema STATIC "${SHEAF_ONNX_GENERATED}/onnx/onnx-ml.pb.cc" "${SHEAF_ONNX_GENERATED}/onnx/onnx-ml.pb.h")
target_include_directories(SheafOnnxSchema SYSTEM PUBLIC "${SHEAF_ONNX_GENERATED}" ${Protobuf_INCLUDE_DIRS})
target_link_libraries(SheafOnnxSchema PUBLIC protobuf::libprotobuf-lite)
