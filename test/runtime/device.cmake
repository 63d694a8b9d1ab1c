# Tests and benchmarks of a device, by default the CPU. They load its library as a program does, so they export the
# plan's messages and protobuf to it.
function(sheaf_device_test_options name)
  set(library sheaf_cpu ${ARGN})
  list(GET library -1 library)
  add_dependencies(${name} ${library})
  set_target_properties(${name} PROPERTIES ENABLE_EXPORTS ON)
  sheaf_test_paths(${name} kDeviceLibrary "$<TARGET_FILE:${library}>")
  target_link_libraries(${name} PRIVATE ${CMAKE_DL_LIBS})
endfunction()

set(SHEAF_LIBRARY_CALL_TESTS
  device_gemm_test.cpp device_gemm_epilogue_test.cpp device_functions_test.cpp device_attention_test.cpp device_convolution_test.cpp
  device_half_test.cpp device_loss_scale_test.cpp device_selection_test.cpp)
sheaf_add_gtest(device_test
  SOURCES device_test.cpp ${SHEAF_LIBRARY_CALL_TESTS}
  LIBS SheafLibrary SheafPlanSchema SheafBase)
sheaf_device_test_options(device_test)
sheaf_add_gtest(device_transfer_test SOURCES device_transfer_test.cpp LIBS SheafPlan)
sheaf_device_test_options(device_transfer_test)
sheaf_add_gtest(instruction_table_test SOURCES instruction_table_test.cpp LIBS SheafDevice)
# Convolutions and products again as on a processor with AVX2 alone, and as on one that oneDNN has no fitting primitives
# for.
foreach(isa AVX2 SSE41)
  add_test(NAME device_test_${isa} COMMAND device_test --gtest_filter=*Convolution*:*Gemm*-*HalfGemm*
           --gtest_output=json:${PROJECT_BINARY_DIR}/test/results/device_test_${isa}.json)
  set_tests_properties(device_test_${isa} PROPERTIES LABELS gtest ENVIRONMENT "ONEDNN_MAX_CPU_ISA=${isa};DNNL_MAX_CPU_ISA=${isa}")
endforeach()

# This one links our own loops and sees which are chosen under a limit on oneDNN's instructions.
sheaf_add_gtest(simd_dispatch_test SOURCES simd_dispatch_test.cpp LIBS SheafDevice SheafOneDnn)
target_sources(simd_dispatch_test PRIVATE ${PROJECT_SOURCE_DIR}/runtime/device/cpu/simd/Dispatch.cpp
  $<TARGET_OBJECTS:SheafSimd_v2> $<TARGET_OBJECTS:SheafSimd_v3> $<TARGET_OBJECTS:SheafSimd_v4>)

# This one links our own products.
sheaf_add_gtest(sgemm_test SOURCES sgemm_test.cpp LIBS SheafDevice SheafLibrary)
target_sources(sgemm_test PRIVATE $<TARGET_OBJECTS:SheafSimd_v3>)
add_custom_target(sgemm_cases COMMAND ${CMAKE_COMMAND} -E env SHEAF_SGEMM_CASES=10000 $<TARGET_FILE:sgemm_test> USES_TERMINAL VERBATIM)

sheaf_add_gtest(comm_local_test
  SOURCES comm_local_test.cpp
  LIBS SheafCommLocal SheafLibrary SheafPlanSchema SheafBase)

sheaf_add_gtest(library_check_test
  SOURCES library_check_test.cpp library_calls_test.cpp tiles_test.cpp ValidCalls.cpp
  LIBS SheafLibrary SheafPlanSchema SheafBase)

# Benchmarks are built with the tests, so that they keep compiling; `make bench` runs them.
foreach(bench gemm_bench attention_bench collectives_bench)
  add_executable(${bench} ${PROJECT_SOURCE_DIR}/test/bench/${bench}.cpp)
  target_compile_options(${bench} PRIVATE -O2)
  target_link_libraries(${bench} PRIVATE SheafCommLocal SheafLibrary SheafPlanSchema SheafBase)
  set_target_properties(${bench} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/test/bin)
  target_include_directories(${bench} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR})
  sheaf_device_test_options(${bench})
  sheaf_warnings(${bench})
endforeach()
# It calls oneDNN itself, too, and reads plans.
find_package(OpenMP REQUIRED COMPONENTS CXX)
target_link_libraries(gemm_bench PRIVATE SheafPlan SheafOneDnn OpenMP::OpenMP_CXX)
