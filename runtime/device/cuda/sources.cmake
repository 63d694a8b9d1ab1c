# What libsheaf_cuda.so is made of; its double for the tests is made of the same sources, compiled for the CPU.
include(${CMAKE_CURRENT_LIST_DIR}/functions/sources.cmake)  # SHEAF_CUDA_FUNCTION_SOURCES, SHEAF_CUDA_FUNCTION_KERNELS
set(SHEAF_CUDA_SOURCES
  Arena.cpp CudaContext.cpp CudaDevice.cpp FilePersist.cpp FileStream.cpp GpuInstructions.cpp GraphBurst.cpp Gpu.cpp HostArena.cpp HostCompute.cpp
  HostThread.cpp InstructionClock.cpp OtherSpaces.cpp
  PeerCommunicators.cpp Progress.cpp RankOnGpu.cpp StepGraphs.cpp
  nccl/Communicator.cpp nccl/Environment.cpp nccl/ExchangedSums.cpp nccl/LaunchOrder.cpp nccl/NcclCommunicators.cpp nccl/Watchdog.cpp
  ${SHEAF_CUDA_FUNCTION_SOURCES})
# Only in the real library: the double has others in test/emulation.
set(SHEAF_CUDA_REAL_SOURCES FusedKernels.cpp nccl/NcclApi.cpp)
set(SHEAF_CUDA_KERNELS
  kernels/HandOver.cu kernels/Mark.cu kernels/Reduce.cu
  ${SHEAF_CUDA_FUNCTION_KERNELS})
foreach(list SHEAF_CUDA_SOURCES SHEAF_CUDA_REAL_SOURCES SHEAF_CUDA_KERNELS)
  list(TRANSFORM ${list} PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
endforeach()
# The runtime's libraries that both link (hidden), as the CPU's device does.
set(SHEAF_CUDA_RUNTIME_LIBRARIES SheafDevice SheafCommLocal SheafLibrary SheafBase)
