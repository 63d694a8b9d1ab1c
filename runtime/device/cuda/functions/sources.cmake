# The library calls on a GPU; paths are relative to runtime/device/cuda.
set(SHEAF_CUDA_FUNCTION_SOURCES
  Blas.cpp BlasTuning.cpp
  functions/LibraryFunction.cpp functions/Attention.cpp functions/Convolution.cpp functions/Gemm.cpp functions/LossScale.cpp functions/Moves.cpp
  functions/Selection.cpp functions/Sums.cpp)
set(SHEAF_CUDA_FUNCTION_KERNELS
  kernels/AttentionForward.cu kernels/AttentionGrad.cu kernels/Copy.cu kernels/Dropout.cu
  kernels/GemmEpilogue.cu kernels/Indexing.cu kernels/LossScale.cu kernels/Sort.cu kernels/Sums.cu kernels/TopK.cu kernels/Windows.cu)
# Libraries that the double replaces; paths are relative to test/emulation.
set(SHEAF_CUDA_EMULATED_LIBRARIES CublasLt.cpp)
