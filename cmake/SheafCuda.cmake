# CUDA: libsheaf_cuda.so and its double for tests need a toolkit of version 12.8 or later (nvcc, cuBLASLt, and NCCL's
# header; NCCL itself is loaded at run time). Without one, CUDA devices and their tests are left out. CMAKE's own CUDA
# language is not used: it needs a whole toolkit in the usual places, where a few packages suffice.
option(SHEAF_CUDA "Build CUDA devices and their tests if there is a toolkit" ON)
set(SHEAF_CUDA_ARCHITECTURES "80;90;100" CACHE STRING "What our own kernels are compiled for; the last one as PTX, too")

set(SHEAF_CUDA_TOOLKIT OFF)  # whether there is one
if(SHEAF_CUDA)
  find_program(SHEAF_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
  set(missing "nvcc")
  if(SHEAF_NVCC)
    get_filename_component(root ${SHEAF_NVCC} REALPATH)
    get_filename_component(root ${root}/../.. ABSOLUTE)
    execute_process(COMMAND ${SHEAF_NVCC} --version OUTPUT_VARIABLE version ERROR_QUIET)
    string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" version "${version}")
    set(SHEAF_CUDA_VERSION "${CMAKE_MATCH_1}")
    find_path(SHEAF_CUDA_INCLUDE cuda_runtime_api.h HINTS ${root}/include ${root}/targets/x86_64-linux/include NO_DEFAULT_PATH)
    find_path(SHEAF_NCCL_INCLUDE nccl.h HINTS ${root}/include ${root}/targets/x86_64-linux/include)
    find_library(SHEAF_CUDART_LIBRARY cudart_static HINTS ${root}/lib64 ${root}/lib ${root}/targets/x86_64-linux/lib NO_DEFAULT_PATH)
    find_library(SHEAF_CUBLASLT_LIBRARY cublasLt HINTS ${root}/lib64 ${root}/lib ${root}/targets/x86_64-linux/lib NO_DEFAULT_PATH)
    set(missing "")
    if(SHEAF_CUDA_VERSION VERSION_LESS 12.8)
      list(APPEND missing "a version of at least 12.8 (it is ${SHEAF_CUDA_VERSION})")
    endif()
    foreach(part SHEAF_CUDA_INCLUDE SHEAF_NCCL_INCLUDE SHEAF_CUDART_LIBRARY SHEAF_CUBLASLT_LIBRARY)
      if(NOT ${part})
        list(APPEND missing ${part})
      endif()
    endforeach()
  endif()
  if(missing)
    string(REPLACE ";" ", " missing "${missing}")
    message(STATUS "CUDA devices and their tests are left out: no CUDA toolkit with ${missing}")
  else()
    set(SHEAF_CUDA_TOOLKIT ON)
    message(STATUS "CUDA devices: toolkit ${SHEAF_CUDA_VERSION} of ${SHEAF_NVCC}")
  endif()
else()
  message(STATUS "CUDA devices and their tests are left out: SHEAF_CUDA is off")
endif()

# sheaf_cuda_objects(variable source.cu...): compiles each by nvcc for all architectures; the objects' paths are put
# into the variable. Products and sums are contracted only where a kernel says fma.
function(sheaf_cuda_objects variable)
  set(flags -std=c++20 -O3 --fmad=false --expt-relaxed-constexpr -Xcompiler=-fPIC,-fvisibility=hidden,-Wall
      -I${PROJECT_SOURCE_DIR} -I${PROJECT_BINARY_DIR} -I${SHEAF_CUDA_INCLUDE})
  if(SHEAF_WERROR)
    # Kernels whose registers do not suffice are errors, too: otherwise they would be slow without a notice.
    list(APPEND flags -Werror=all-warnings -Xptxas=--warn-on-spills)
  endif()
  foreach(architecture IN LISTS SHEAF_CUDA_ARCHITECTURES)
    list(APPEND flags -gencode=arch=compute_${architecture},code=sm_${architecture})
    set(newest ${architecture})
  endforeach()
  list(APPEND flags -gencode=arch=compute_${newest},code=compute_${newest})
  set(objects "")
  foreach(source IN LISTS ARGN)
    get_filename_component(source ${source} ABSOLUTE)
    file(RELATIVE_PATH name ${CMAKE_CURRENT_SOURCE_DIR} ${source})
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${name}.o)
    get_filename_component(folder ${object} DIRECTORY)
    file(MAKE_DIRECTORY ${folder})
    add_custom_command(
      OUTPUT ${object}
      COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${SHEAF_NVCC} ${flags} -MD -MF ${object}.d -MT ${object} -c ${source} -o ${object}
      DEPENDS ${source} DEPFILE ${object}.d
      COMMENT "nvcc ${name}" VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  set(${variable} ${objects} PARENT_SCOPE)
endfunction()
