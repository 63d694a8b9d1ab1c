# What `cmake --install` puts under the prefix: the tools, the device libraries that sheaf-run looks for in ../lib, and the
# licence. libMLIR and libLLVM stay where Debian has them.
include(GNUInstallDirs)
install(TARGETS sheaf sheaf-opt sheaf-run RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS sheaf_cpu LIBRARY DESTINATION lib)
if(TARGET sheaf_cuda)
  install(TARGETS sheaf_cuda LIBRARY DESTINATION lib)
endif()
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
