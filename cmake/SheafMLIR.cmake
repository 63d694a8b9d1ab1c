# MLIR 22 as Debian ships it, used through its shared libraries.
find_package(MLIR 22.1 REQUIRED CONFIG HINTS /usr/lib/llvm-22/lib/cmake/mlir)
list(APPEND CMAKE_MODULE_PATH "${MLIR_CMAKE_DIR}" "${LLVM_CMAKE_DIR}")
include(TableGen)
include(AddLLVM)
include(AddMLIR)
separate_arguments(SHEAF_LLVM_DEFINITIONS NATIVE_COMMAND ${LLVM_DEFINITIONS})

# sheaf_compiler_library(name sources...): a static library of a compiler room (ir, frontend, passes, codegen).
function(sheaf_compiler_library name)
  add_library(${name} STATIC ${ARGN})
  sheaf_compiler_target(${name})
endfunction()

# sheaf_compiler_target(name): MLIR's headers, definitions and libraries for a library or a tool.
function(sheaf_compiler_target name)
  target_include_directories(${name} SYSTEM PUBLIC ${LLVM_INCLUDE_DIRS} ${MLIR_INCLUDE_DIRS})
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR})
  target_compile_definitions(${name} PUBLIC ${SHEAF_LLVM_DEFINITIONS})
  target_link_libraries(${name} PUBLIC MLIR LLVM)
  sheaf_warnings(${name})
endfunction()

# sheaf_tablegen(td output flags...): one mlir-tblgen output under the build tree's mirror of the source folder.
function(sheaf_tablegen td output)
  set(LLVM_TARGET_DEFINITIONS ${td})
  mlir_tablegen(${output} ${ARGN} -I${PROJECT_SOURCE_DIR} -I/usr/lib/llvm-22/include)
  set(TABLEGEN_OUTPUT ${TABLEGEN_OUTPUT} PARENT_SCOPE)
endfunction()
