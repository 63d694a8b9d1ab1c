# What `cmake --install` puts under the prefix: the tools, the device libraries that sheaf-run looks for in ../lib, and the
# licence. libMLIR and libLLVM stay where Debian has them.
include(GNUInstallDirs)
install(TARGETS sheaf sheaf-opt sheaf-run RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS sheaf_cpu LIBRARY DESTINATION lib)
if(TARGET sheaf_cuda)
  install(TARGETS sheaf_cuda LIBRARY DESTINATION lib)
endif()
if(TARGET sheaf_cuda)
  install(TARGETS sheaf_cuda LIBRARY DESTINATION lib)
endif()
foreach(name openmpi mpich)
  if(TARGET sheaf_mpi_${name})
    install(TARGETS sheaf_mpi_${name} LIBRARY DESTINATION lib)
  endif()
endforeach()
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})

# The component `dist`, for `make dist`: the runtime alone, with the libraries that other systems may lack (oneDNN and what
# it needs), to be unpacked anywhere on machines that have neither MLIR nor ONNX nor this tree. They need glibc 2.34 and
# GCC 12's libstdc++, or newer; a driver, cuBLAS and NCCL are the machine's own.
set(SHEAF_DIST_OPTIONS COMPONENT dist EXCLUDE_FROM_ALL)
# An RPATH, unlike a RUNPATH, counts for what oneDNN loads in turn.
set_target_properties(sheaf_cpu PROPERTIES INSTALL_RPATH "$ORIGIN")
target_link_options(sheaf_cpu PRIVATE "LINKER:--disable-new-dtags")
install(TARGETS sheaf-run RUNTIME DESTINATION bin ${SHEAF_DIST_OPTIONS})
install(TARGETS sheaf_cpu RUNTIME_DEPENDENCY_SET sheaf_dist LIBRARY DESTINATION lib ${SHEAF_DIST_OPTIONS})
install(RUNTIME_DEPENDENCY_SET sheaf_dist
  PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|stdc\\+\\+|gcc_s|pthread|dl|rt)\\.so" "^lib(cuda|cudart|cublas|cublasLt|nccl)\\.so"
  LIBRARY DESTINATION lib ${SHEAF_DIST_OPTIONS})
if(TARGET sheaf_cuda)
  # cuBLASLt is where the toolkit puts it, or on LD_LIBRARY_PATH.
  set_target_properties(sheaf_cuda PROPERTIES INSTALL_RPATH "/usr/local/cuda/lib64" INSTALL_RPATH_USE_LINK_PATH OFF)
  install(TARGETS sheaf_cuda LIBRARY DESTINATION lib ${SHEAF_DIST_OPTIONS})
endif()
# MPI is the cluster's own.
foreach(name openmpi mpich)
  if(TARGET sheaf_mpi_${name})
    install(TARGETS sheaf_mpi_${name} LIBRARY DESTINATION lib ${SHEAF_DIST_OPTIONS})
  endif()
endforeach()
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION . ${SHEAF_DIST_OPTIONS})
