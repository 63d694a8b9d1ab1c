# Tests of the CUDA device: on its double everywhere, and, where libsheaf_cuda.so is built, on a GPU, labelled gpu. The
# latter are skipped, with the reason, on machines that have none.
if(NOT TARGET sheaf_cuda_emulated)
  return()
endif()
sheaf_add_gtest(cuda_test SLOW
  SOURCES cuda_collectives_test.cpp cuda_context_test.cpp cuda_emulated_test.cpp cuda_host_test.cpp cuda_nccl_test.cpp
          cuda_rules_test.cpp cuda_transfer_test.cpp
  LIBS SheafCommLocal SheafLibrary SheafPlanSchema SheafBase)
sheaf_device_test_options(cuda_test sheaf_cuda_emulated)

# A communicator over functions of its own.
sheaf_add_gtest(cuda_communicator_test
  SOURCES cuda_communicator_test.cpp ${PROJECT_SOURCE_DIR}/runtime/device/cuda/nccl/Communicator.cpp
  LIBS SheafCommLocal SheafBase)
target_include_directories(cuda_communicator_test SYSTEM PRIVATE ${SHEAF_CUDA_INCLUDE} ${SHEAF_NCCL_INCLUDE})

sheaf_add_gtest(cuda_training_test SOURCES cuda_training_test.cpp LIBS SheafExec)
add_dependencies(cuda_training_test sheaf_cpu sheaf_cuda_emulated)
set_target_properties(cuda_training_test PROPERTIES ENABLE_EXPORTS ON)
sheaf_test_paths(cuda_training_test kLibraries "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}"
  kEmulatedLibrary "$<TARGET_FILE:sheaf_cuda_emulated>")
target_link_options(cuda_training_test PRIVATE "LINKER:--whole-archive,${SHEAF_PROTOBUF_LITE},--no-whole-archive")

# State in files across crashes, on the double.
sheaf_add_gtest(cuda_files_test SLOW SOURCES cuda_files_test.cpp LIBS SheafExec)
set_tests_properties(cuda_files_test PROPERTIES RESOURCE_LOCK disk TIMEOUT 300)
sheaf_device_test_options(cuda_files_test sheaf_cuda_emulated)
add_dependencies(cuda_files_test sheaf_cpu)
sheaf_test_paths(cuda_files_test kLibraries "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}"
  kEmulatedLibrary "$<TARGET_FILE:sheaf_cuda_emulated>")
target_link_options(cuda_files_test PRIVATE "LINKER:--whole-archive,${SHEAF_PROTOBUF_LITE},--no-whole-archive")

if(TARGET sheaf_cuda)
  sheaf_add_gtest(cuda_gpu_test
    SOURCES cuda_collectives_test.cpp cuda_context_test.cpp cuda_host_test.cpp cuda_transfer_test.cpp
    LIBS SheafCommLocal SheafLibrary SheafPlanSchema SheafBase)
  sheaf_device_test_options(cuda_gpu_test sheaf_cuda)
  set_tests_properties(cuda_gpu_test PROPERTIES LABELS "gtest;gpu" RUN_SERIAL ON)
endif()
