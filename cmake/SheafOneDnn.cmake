# oneDNN as the target SheafOneDnn. Debian's own CMake package demands OpenCL's headers, which nothing here includes.
find_library(SHEAF_DNNL_LIBRARY dnnl REQUIRED)
find_path(SHEAF_DNNL_INCLUDE dnnl.h REQUIRED)
add_library(SheafOneDnn INTERFACE)
target_include_directories(SheafOneDnn SYSTEM INTERFACE ${SHEAF_DNNL_INCLUDE})
target_link_libraries(SheafOneDnn INTERFACE ${SHEAF_DNNL_LIBRARY})
