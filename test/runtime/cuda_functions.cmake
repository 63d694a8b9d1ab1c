# The same library calls on a GPU: cuda_functions_test emulates it, cuda_functions_gpu_test needs one, and skips
# with a reason where there is none.
if(NOT TARGET sheaf_cuda_emulated)
  return()
endif()
set(kinds test)
if(TARGET sheaf_cuda)
  list(APPEND kinds gpu_test)
endif()
foreach(kind IN LISTS kinds)
  set(name cuda_functions_${kind})
  sheaf_add_gtest(${name} SLOW
    SOURCES ${SHEAF_LIBRARY_CALL_TESTS} cuda_functions_main.cpp
    LIBS SheafLibrary SheafPlanSchema SheafBase
    TIMEOUT 300)
  target_compile_definitions(${name} PRIVATE SHEAF_TEST_CUDA)
endforeach()
sheaf_device_test_options(cuda_functions_test sheaf_cuda_emulated)
# Once more with every block in one order. ThreadSanitizer needs no other orders to see that a barrier is missing.
if(NOT SHEAF_SANITIZE)
  foreach(order reversed 1)
    set(name cuda_functions_test_order_${order})
    add_test(NAME ${name} COMMAND cuda_functions_test --gtest_output=json:${PROJECT_BINARY_DIR}/test/results/${name}.json)
    set_tests_properties(${name} PROPERTIES LABELS "gtest;slow" TIMEOUT 300 ENVIRONMENT "SHEAF_EMULATED_ORDER=${order}")
  endforeach()
endif()
if(TARGET sheaf_cuda)
  sheaf_device_test_options(cuda_functions_gpu_test sheaf_cuda)
  set_tests_properties(cuda_functions_gpu_test PROPERTIES LABELS "gtest;gpu" RUN_SERIAL ON)
endif()

# cuBLASLt's choices, over the emulated one, and the rules of that one.
include(${PROJECT_SOURCE_DIR}/runtime/device/cuda/sources.cmake)
set(emulation ${PROJECT_SOURCE_DIR}/test/emulation)
set(device ${PROJECT_SOURCE_DIR}/runtime/device/cuda)
sheaf_add_gtest(cuda_blas_test
  SOURCES cuda_blas_test.cpp cuda_cublaslt_test.cpp ${device}/Blas.cpp ${device}/BlasTuning.cpp ${emulation}/CublasLt.cpp
          ${emulation}/Runtime.cpp ${emulation}/Capture.cpp ${emulation}/Collectives.cpp ${emulation}/Devices.cpp
          ${emulation}/Memory.cpp ${emulation}/ThreadBlock.cpp ${emulation}/WarpOrder.cpp
  LIBS SheafBase)
target_include_directories(cuda_blas_test SYSTEM PRIVATE ${SHEAF_CUDA_INCLUDE})
target_compile_definitions(cuda_blas_test PRIVATE SHEAF_CUDA_EMULATION)
