# Language standard, warnings, sanitizers and ccache for all of our own targets.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# The compiler components are bound by MLIR's own code, not ours: -O1 builds them a third faster. The runtime sets -O3 itself.
set(CMAKE_CXX_FLAGS_RELEASE "-O1 -DNDEBUG")
# Programs are compiled with -fPIC like libraries, and not with -fPIE, so that both can use the same precompiled headers.
add_compile_options(-fPIC)
# Collecting garbage from 128 MiB on takes a tenth of GCC's time. From 512 MiB on, most files take some 700 MiB.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(--param=ggc-min-heapsize=524288)
endif()

# Installed tools find Debian's LLVM, which is not on the loader's path.
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)

set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)

# ccache: paths are relative to the project, so that clones share results. SLOPPINESS is what ccache's manual requires for
# precompiled headers. INODECACHE keeps the hashes of these (some 350 MB) by inode, instead of reading them for every file.
find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 CCACHE_INODECACHE=1
      CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()

if(NOT SHEAF_PRECOMPILED_HEADERS)
  set(CMAKE_DISABLE_PRECOMPILE_HEADERS ON)
endif()

# sheaf_precompiled_headers(name DEPENDS target... HEADERS header...): an object library that holds precompiled headers.
# Targets use it by `target_precompile_headers(TARGET REUSE_FROM name)`. They must be compiled with the options and
# definitions of `name`: GCC refuses others, but crashes where only the level of optimization differs. A source file with
# options of its own has the property SKIP_PRECOMPILE_HEADERS.
function(sheaf_precompiled_headers name)
  cmake_parse_arguments(ARG "" "" "DEPENDS;HEADERS" ${ARGN})
  set(source "${CMAKE_CURRENT_BINARY_DIR}/${name}.cpp")
  file(CONFIGURE OUTPUT "${source}" CONTENT "// Has no code: only the headers are used.\n")
  add_library(${name} OBJECT "${source}")
  add_dependencies(${name} ${ARG_DEPENDS})
  target_precompile_headers(${name} PRIVATE ${ARG_HEADERS})
  if(CCACHE)
    set_target_properties(${name} PROPERTIES
      CXX_COMPILER_LAUNCHER "${PROJECT_SOURCE_DIR}/cmake/without-old-output.sh;${CMAKE_CXX_COMPILER_LAUNCHER}")
  endif()
endfunction()

# What the tests set in the environment of an instrumented program: the first finding ends it with a code of its own.
set(SHEAF_SANITIZER_ENVIRONMENT "")
if(SHEAF_SANITIZE STREQUAL "address")
  # vptr needs the RTTI of MLIR's shared library, which hides it.
  add_compile_options(-fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=all -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=address,undefined)
  # LLVM's allocators poison what they have not handed out, but only in code that is compiled with ASan: ours, not libMLIR.
  # LeakSanitizer up to GCC 13 looks for headers of thread-local blocks that glibc has not had since 2.25, and now and then
  # crashes at exit on other bytes: the option turns the search off.
  list(APPEND SHEAF_SANITIZER_ENVIRONMENT
    "ASAN_OPTIONS=intercept_tls_get_addr=0:allow_user_poisoning=0:strict_string_checks=1:detect_stack_use_after_return=1:exitcode=99"
    "UBSAN_OPTIONS=print_stacktrace=1:exitcode=99")
elseif(SHEAF_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -g1)
  add_link_options(-fsanitize=thread)
  # Debian's LLVM, MLIR and oneDNN are not instrumented, so what they synchronise is invisible: they are left out.
  list(APPEND SHEAF_SANITIZER_ENVIRONMENT
    "TSAN_OPTIONS=halt_on_error=1:exitcode=99:ignore_noninstrumented_modules=1:suppressions=${PROJECT_SOURCE_DIR}/test/tsan.supp"
    # UCX, under Debian's MPICH, puts jumps into the C library's functions of memory to see what is mapped. Those of
    # ThreadSanitizer do not survive it.
    "UCX_MEM_EVENTS=n")
elseif(SHEAF_SANITIZE)
  message(FATAL_ERROR "SHEAF_SANITIZE is '${SHEAF_SANITIZE}'; it takes address or thread")
endif()

# sheaf_warnings(target): the warnings our own code is held to. GCC 12's -Wrestrict is wrong about std::string (PR105651), and
# its -Wmaybe-uninitialized about variants and std::function in instrumented code. -Warray-bounds and -Wstringop-overflow are
# wrong about std::string where that comes from precompiled headers, which GCC does not treat as system headers.
function(sheaf_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wno-unused-parameter -Wno-restrict)
  if(SHEAF_SANITIZE)
    target_compile_options(${target} PRIVATE -Wno-maybe-uninitialized)
  endif()
  if(SHEAF_PRECOMPILED_HEADERS)
    target_compile_options(${target} PRIVATE -Wno-array-bounds -Wno-stringop-overflow)
  endif()
  if(SHEAF_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
endfunction()

# sheaf_runtime_library(name sources...): a static library of the runtime, free of MLIR and ONNX. Programs and device
# libraries link it. Its symbols are hidden, so that each has its own copy.
function(sheaf_runtime_library name)
  add_library(${name} STATIC ${ARGN})
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR})
  sheaf_runtime_options(${name})
  if(TARGET SheafRuntimeHeaders)
    target_precompile_headers(${name} REUSE_FROM SheafRuntimeHeaders)
  endif()
endfunction()

# sheaf_loaded_library(name sources...): a shared library of the runtime that programs load where it is asked for. The
# runtime's static libraries are linked in, and the linker hides what comes from them: GCC exports explicit
# specializations of function templates (plan::wordTable) in spite of -fvisibility=hidden. So the library offers one
# function and its version, and needs nothing of the program but the plan's messages and protobuf-lite, of which a process
# must have one copy.
function(sheaf_loaded_library name)
  add_library(${name} SHARED ${ARGN})
  sheaf_library_version(${name})
  sheaf_runtime_options(${name})
  target_link_options(${name} PRIVATE "LINKER:--exclude-libs,ALL")
  sheaf_link_map(${name})
endfunction()

# sheaf_library_version(name): programs load libraries of their own version only.
function(sheaf_library_version name)
  add_library(${name}_version OBJECT ${PROJECT_SOURCE_DIR}/runtime/base/LibraryVersion.cpp)
  target_compile_definitions(${name}_version PRIVATE SHEAF_VERSION="${PROJECT_VERSION}")
  set_target_properties(${name}_version PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_sources(${name} PRIVATE $<TARGET_OBJECTS:${name}_version>)
endfunction()

# sheaf_link_map(name): also writes maps/FILE.map, in which test/structure/linked.py finds the objects that are linked in.
set(SHEAF_LINK_MAPS ${PROJECT_BINARY_DIR}/maps)
file(MAKE_DIRECTORY ${SHEAF_LINK_MAPS})
function(sheaf_link_map name)
  target_link_options(${name} PRIVATE "LINKER:-Map=${SHEAF_LINK_MAPS}/$<TARGET_FILE_NAME:${name}>.map")
endfunction()

# sheaf_runtime_options(target): sets -O3, hidden symbols and our warnings.
function(sheaf_runtime_options name)
  target_compile_options(${name} PRIVATE -O3)
  set_target_properties(${name} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  sheaf_warnings(${name})
endfunction()
