# MLIR 22 as Debian ships it, used through its shared libraries, or in portable tools through its archives.
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
  set_property(GLOBAL APPEND PROPERTY SHEAF_COMPILER_LIBRARIES ${name})
endfunction()

# sheaf_compiler_target(name): adds MLIR's headers, definitions and libraries to a library or a tool, and the precompiled
# headers of the target SHEAF_PRECOMPILED if its CMakeLists.txt sets that.
function(sheaf_compiler_target name)
  target_include_directories(${name} SYSTEM PUBLIC ${LLVM_INCLUDE_DIRS} ${MLIR_INCLUDE_DIRS})
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR})
  target_compile_definitions(${name} PUBLIC ${SHEAF_LLVM_DEFINITIONS})
  # What a library is linked with depends on the program that it is linked into.
  set(static "$<BOOL:$<TARGET_PROPERTY:SHEAF_STATIC_LLVM>>")
  target_link_libraries(${name} PUBLIC $<$<NOT:${static}>:MLIR> $<$<NOT:${static}>:LLVM> $<${static}:SheafLlvmArchives>)
  sheaf_warnings(${name})
  if(SHEAF_PRECOMPILED)
    target_precompile_headers(${name} REUSE_FROM ${SHEAF_PRECOMPILED})
  endif()
endfunction()

# sheaf_tablegen(td output flags...): one mlir-tblgen output under the build tree's mirror of the source folder.
function(sheaf_tablegen td output)
  set(LLVM_TARGET_DEFINITIONS ${td})
  mlir_tablegen(${output} ${ARGN} -I${PROJECT_SOURCE_DIR} -I/usr/lib/llvm-22/include)
  set(TABLEGEN_OUTPUT ${TABLEGEN_OUTPUT} PARENT_SCOPE)
endfunction()

# SheafLlvmArchives: MLIR's and LLVM's archives, as one linker script because they refer to each other; a program gets the
# objects that it needs.
find_library(SHEAF_ZSTD_ARCHIVE libzstd.a)
find_library(SHEAF_Z_ARCHIVE libz.a)
if(NOT SHEAF_ZSTD_ARCHIVE OR NOT SHEAF_Z_ARCHIVE)
  message(STATUS "Portable tools, for `make wheel`, are left out: no libzstd.a or libz.a")
endif()
file(GLOB archives ${LLVM_LIBRARY_DIRS}/libMLIR*.a ${LLVM_LIBRARY_DIRS}/libLLVM*.a)
list(JOIN archives "\n" archives)
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/llvm-archives.ld CONTENT "GROUP (\n${archives}\n)\n" @ONLY)
add_library(SheafLlvmArchives INTERFACE)
target_link_libraries(SheafLlvmArchives INTERFACE ${PROJECT_BINARY_DIR}/llvm-archives.ld
  $<$<BOOL:${SHEAF_ZSTD_ARCHIVE}>:${SHEAF_ZSTD_ARCHIVE}> $<$<BOOL:${SHEAF_Z_ARCHIVE}>:${SHEAF_Z_ARCHIVE}> ${CMAKE_DL_LIBS})

# sheaf_portable_tool(name tool): the same program with MLIR and LLVM in it, for machines without these (`make wheel`). It
# exports our classes and protobuf's alone, for device libraries that it loads; what nothing refers to is left out.
function(sheaf_portable_tool name tool)
  if(NOT SHEAF_ZSTD_ARCHIVE OR NOT SHEAF_Z_ARCHIVE)
    return()
  endif()
  add_executable(${name} EXCLUDE_FROM_ALL $<TARGET_OBJECTS:${tool}>)
  get_target_property(libraries ${tool} LINK_LIBRARIES)
  target_link_libraries(${name} PRIVATE ${libraries})
  find_program(SHEAF_LLD ld.lld)
  target_link_options(${name} PRIVATE $<$<BOOL:${SHEAF_LLD}>:-fuse-ld=lld>
    LINKER:--gc-sections LINKER:--dynamic-list=${PROJECT_SOURCE_DIR}/cmake/portable-exports.txt)
  set_target_properties(${name} PROPERTIES
    LINKER_LANGUAGE CXX SHEAF_STATIC_LLVM ON OUTPUT_NAME ${tool} RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/portable
    LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/portable-exports.txt
    INSTALL_RPATH "$ORIGIN/../lib" INSTALL_RPATH_USE_LINK_PATH OFF)
endfunction()
