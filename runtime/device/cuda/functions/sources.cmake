# The library calls on a GPU; paths are relative to runtime/device/cuda.
set(SHEAF_CUDA_FUNCTION_SOURCES "")
set(SHEAF_CUDA_FUNCTION_KERNELS "")
# Libraries that the double replaces; paths are relative to test/emulation.
set(SHEAF_CUDA_EMULATED_LIBRARIES "")
