# Tests and benchmarks of the CPU device. They load libsheaf_cpu.so as a program does, so they export the plan's messages
# and protobuf to it.
function(sheaf_device_test_options name)
  add_dependencies(${name} sheaf_cpu)
  set_target_properties(${name} PROPERTIES ENABLE_EXPORTS ON)
  target_compile_definitions(${name} PRIVATE SHEAF_CPU_LIBRARY="$<TARGET_FILE:sheaf_cpu>")
  target_link_libraries(${name} PRIVATE ${CMAKE_DL_LIBS})
endfunction()

sheaf_add_gtest(device_test
  SOURCES device_test.cpp device_gemm_test.cpp device_functions_test.cpp device_attention_test.cpp
          device_convolution_test.cpp
  LIBS SheafLibrary SheafPlanSchema SheafBase)
sheaf_device_test_options(device_test)

sheaf_add_gtest(comm_local_test
  SOURCES comm_local_test.cpp
  LIBS SheafCommLocal SheafLibrary SheafPlanSchema SheafBase)

sheaf_add_gtest(library_check_test
  SOURCES library_check_test.cpp
  LIBS SheafLibrary SheafPlanSchema SheafBase)
