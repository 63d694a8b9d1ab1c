# Tests of the runtime's core. Runs load libsheaf_cpu.so as sheaf-run does, so the binary exports protobuf and the plan's
# classes to it.
sheaf_add_gtest(runtime_test
  SOURCES
    base_atomic_file_test.cpp digests_test.cpp exec_files_test.cpp exec_parts_test.cpp exec_run_test.cpp happens_before_test.cpp io_checkpoint_test.cpp io_data_test.cpp io_formats_test.cpp io_kept_states_test.cpp io_pipe_test.cpp mixed_hosts_test.cpp plan_test.cpp
    proof_places_test.cpp proof_test.cpp state_saver_test.cpp step_work_test.cpp weight_shards_test.cpp
    ${PROJECT_SOURCE_DIR}/tools/sheaf-run/Options.cpp
  LIBS SheafExec SheafReports SheafOptions)
add_dependencies(runtime_test sheaf_cpu)
sheaf_test_paths(runtime_test kLibraries "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}")
target_link_options(runtime_test PRIVATE "LINKER:--whole-archive,${SHEAF_PROTOBUF_LITE},--no-whole-archive")
set_target_properties(runtime_test PROPERTIES ENABLE_EXPORTS ON)
# State in files: runs that crash, and go on.
sheaf_add_gtest(files_crash_test SLOW SOURCES files_crash_test.cpp LIBS SheafExec)
add_dependencies(files_crash_test sheaf_cpu)
sheaf_test_paths(files_crash_test kLibraries "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}")
target_link_options(files_crash_test PRIVATE "LINKER:--whole-archive,${SHEAF_PROTOBUF_LITE},--no-whole-archive")
set_target_properties(files_crash_test PROPERTIES ENABLE_EXPORTS ON)
sheaf_add_gtest(loss_scale_test SOURCES loss_scale_test.cpp LIBS SheafPlan)
sheaf_add_gtest(sparkline_test SOURCES sparkline_test.cpp LIBS SheafExec)
sheaf_add_gtest(schedules_test SOURCES schedules_test.cpp LIBS SheafPlan)
sheaf_test_paths(schedules_test kModels "${SHEAF_TEST_MODELS}")
sheaf_add_gtest(profile_test SOURCES profile_test.cpp LIBS SheafProfile)
sheaf_add_gtest(measure_test SOURCES measure_test.cpp LIBS SheafMeasure)
sheaf_add_gtest(measure_disk_test SOURCES measure_disk_test.cpp LIBS SheafMeasure)
sheaf_add_gtest(measure_files_test SOURCES measure_files_test.cpp LIBS SheafMeasure TIMEOUT 300)
# Tests that keep the disk busy do not run at the same time.
set_tests_properties(measure_files_test files_crash_test PROPERTIES RESOURCE_LOCK disk)

sheaf_add_gtest(leaves_test SOURCES leaves_test.cpp LIBS SheafSame)
sheaf_add_gtest(plan_analyses_test SOURCES plan_conflicts_test.cpp plan_liveness_test.cpp LIBS SheafPlan)
sheaf_add_gtest(plan_operands_test SOURCES plan_operands_test.cpp LIBS SheafReports)
sheaf_add_gtest(proof_evaluation_test SOURCES proof_evaluation_test.cpp LIBS SheafPlan)
sheaf_add_gtest(proof_generations_test SOURCES proof_generations_test.cpp LIBS SheafPlan)
sheaf_add_gtest(proof_micro_batches_test SOURCES proof_micro_batches_test.cpp LIBS SheafPlan)
sheaf_add_gtest(proof_nodes_test SOURCES proof_nodes_test.cpp LIBS SheafPlan)
sheaf_add_gtest(proof_transfers_test SOURCES proof_transfers_test.cpp LIBS SheafReports)

# The proof against runs of many steps.
sheaf_add_gtest(proof_random_test
  SOURCES proof_random_test.cpp ${PROJECT_SOURCE_DIR}/test/mutants/Oracle.cpp ${PROJECT_SOURCE_DIR}/test/mutants/OracleInstructions.cpp
  LIBS SheafPlan)

sheaf_add_gtest(element_types_test SOURCES element_types_test.cpp LIBS SheafIo SheafCommLocal SheafLibrary)
# It replaces functions of the C library.
sheaf_add_gtest(new_files_test SOURCES new_files_test.cpp LIBS SheafPlan SheafIo)
sheaf_add_gtest(base_endings_test SOURCES base_endings_test.cpp LIBS SheafBase)
sheaf_add_gtest(base_print_test SOURCES base_print_test.cpp LIBS SheafBase)

# Jobs of several processes, played by threads.
sheaf_add_gtest(comm_process_test SOURCES comm_process_test.cpp LIBS SheafCommProcess)
sheaf_add_gtest(comm_shared_test SOURCES comm_shared_test.cpp LIBS SheafCommProcess SheafCommShared SheafCommSocket SheafCommTransport)
sheaf_add_gtest(comm_unrelated_test SOURCES comm_unrelated_test.cpp LIBS SheafCommProcess SheafCommShared SheafCommSocket)
sheaf_add_gtest(comm_transport_test SLOW SOURCES comm_transport_test.cpp LIBS SheafCommProcess SheafCommSocket SheafCommTransport ${CMAKE_DL_LIBS})
add_dependencies(comm_transport_test sheaf_mpi)
sheaf_test_paths(comm_transport_test kLibraries "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}")
