# The ONNX schema: onnx-ml.proto of the pinned `onnx` package from PyPI, compiled with Debian's protoc (lite runtime).
# Debian's libonnx is older and lacks the metadata fields that exporters write; see docs/onnx.md.
find_package(Protobuf REQUIRED)
set(SHEAF_ONNX_PACKAGE "onnx==1.23.2" CACHE STRING "The PyPI package whose schema is used")
set(SHEAF_ONNX_DIR "${PROJECT_BINARY_DIR}/third_party/onnx" CACHE PATH "Where the package is unpacked")

if(NOT EXISTS "${SHEAF_ONNX_DIR}/onnx/onnx-ml.proto")
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  message(STATUS "Fetching ${SHEAF_ONNX_PACKAGE} for its schema")
  execute_process(
    COMMAND ${Python3_EXECUTABLE} -m pip install --quiet --no-deps --disable-pip-version-check --no-compile
            --target ${SHEAF_ONNX_DIR} ${SHEAF_ONNX_PACKAGE}
    RESULT_VARIABLE failed)
  if(failed OR NOT EXISTS "${SHEAF_ONNX_DIR}/onnx/onnx-ml.proto")
    message(FATAL_ERROR "could not fetch ${SHEAF_ONNX_PACKAGE} from PyPI; set SHEAF_ONNX_DIR to a folder that has onnx/onnx-ml.proto")
  endif()
endif()
