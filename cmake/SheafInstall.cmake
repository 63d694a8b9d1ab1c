# What `cmake --install` puts under the prefix: the tools, the libraries that sheaf-run loads from ../lib, man pages,
# completion for bash and zsh, and the licence. libMLIR and libLLVM stay where Debian has them.
include(GNUInstallDirs)
install(TARGETS sheaf sheaf-opt sheaf-run RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
set(SHEAF_LOADED_LIBRARIES sheaf_cpu sheaf_measure sheaf_same)
install(TARGETS ${SHEAF_LOADED_LIBRARIES} LIBRARY DESTINATION lib)
# Those that are there: for GPUs and MPI. `make install` builds them first.
set(SHEAF_OPTIONAL_LIBRARIES "")
foreach(target sheaf_cuda sheaf_mpi_openmpi sheaf_mpi_mpich)
  if(TARGET ${target})
    list(APPEND SHEAF_OPTIONAL_LIBRARIES ${target})
    install(TARGETS ${target} LIBRARY DESTINATION lib OPTIONAL)
  endif()
endforeach()
add_custom_target(sheaf_devices DEPENDS ${SHEAF_LOADED_LIBRARIES} ${SHEAF_OPTIONAL_LIBRARIES})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})

# Man pages and completion come from the tools themselves.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
install(CODE "execute_process(
  COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/manual.py --tools $<TARGET_FILE_DIR:sheaf> --out \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/share\"
  COMMAND_ERROR_IS_FATAL ANY)")

# The component `dist`, for `make dist`: the runtime alone, with the libraries that other systems may lack (oneDNN and what
# it needs), to be unpacked anywhere on machines that have neither MLIR nor ONNX nor this tree. They need glibc 2.34 and
# GCC 12's libstdc++, or newer; a driver, cuBLAS and NCCL are the machine's own.
set(SHEAF_DIST_OPTIONS COMPONENT dist EXCLUDE_FROM_ALL)
# An RPATH, unlike a RUNPATH, counts for what oneDNN loads in turn.
set_target_properties(sheaf_cpu PROPERTIES INSTALL_RPATH "$ORIGIN")
target_link_options(sheaf_cpu PRIVATE "LINKER:--disable-new-dtags")
install(TARGETS sheaf-run RUNTIME DESTINATION bin ${SHEAF_DIST_OPTIONS})
install(TARGETS ${SHEAF_LOADED_LIBRARIES} RUNTIME_DEPENDENCY_SET sheaf_dist
  LIBRARY DESTINATION lib ${SHEAF_DIST_OPTIONS})
set(SHEAF_SYSTEM_LIBRARIES "^ld-linux" "^lib(c|m|stdc\\+\\+|gcc_s|pthread|dl|rt)\\.so" "^lib(cuda|cudart|cublas|cublasLt|nccl)\\.so")
install(RUNTIME_DEPENDENCY_SET sheaf_dist PRE_EXCLUDE_REGEXES ${SHEAF_SYSTEM_LIBRARIES}
  LIBRARY DESTINATION lib ${SHEAF_DIST_OPTIONS})
if(TARGET sheaf_cuda)
  # cuBLASLt is where the toolkit puts it, or on LD_LIBRARY_PATH.
  set_target_properties(sheaf_cuda PROPERTIES INSTALL_RPATH "/usr/local/cuda/lib64" INSTALL_RPATH_USE_LINK_PATH OFF)
endif()
# MPI is the cluster's own.
foreach(target IN LISTS SHEAF_OPTIONAL_LIBRARIES)
  install(TARGETS ${target} LIBRARY DESTINATION lib OPTIONAL ${SHEAF_DIST_OPTIONS})
endforeach()
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION . ${SHEAF_DIST_OPTIONS})

# The component `wheel`, for `make wheel`: the same with `sheaf`, into which MLIR and LLVM are linked.
set(SHEAF_WHEEL_OPTIONS COMPONENT wheel EXCLUDE_FROM_ALL)
if(TARGET sheaf_portable)
  install(TARGETS sheaf-run RUNTIME DESTINATION bin ${SHEAF_WHEEL_OPTIONS})
  install(TARGETS sheaf_portable ${SHEAF_LOADED_LIBRARIES} RUNTIME_DEPENDENCY_SET sheaf_wheel
    RUNTIME DESTINATION bin ${SHEAF_WHEEL_OPTIONS} LIBRARY DESTINATION lib ${SHEAF_WHEEL_OPTIONS})
  install(RUNTIME_DEPENDENCY_SET sheaf_wheel PRE_EXCLUDE_REGEXES ${SHEAF_SYSTEM_LIBRARIES}
    LIBRARY DESTINATION lib ${SHEAF_WHEEL_OPTIONS})
  foreach(target IN LISTS SHEAF_OPTIONAL_LIBRARIES)
    install(TARGETS ${target} LIBRARY DESTINATION lib OPTIONAL ${SHEAF_WHEEL_OPTIONS})
  endforeach()
endif()
