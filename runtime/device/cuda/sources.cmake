# What libsheaf_cuda.so is made of; its double for the tests is made of the same sources, compiled for the CPU.
include(${CMAKE_CURRENT_LIST_DIR}/functions/sources.cmake)  # SHEAF_CUDA_FUNCTION_SOURCES, SHEAF_CUDA_FUNCTION_KERNELS
set(SHEAF_CUDA_SOURCES
  Arena.cpp CudaContext.cpp CudaDevice.cpp FilePersist.cpp FileStream.cpp GraphBurst.cpp Gpu.cpp HostArena.cpp HostCompute.cpp
  HostThread.cpp InstructionClock.cpp InstructionTable.cpp OtherSpaces.cpp
  PeerCommunicators.cpp Progress.cpp StepGraphs.cpp
  nccl/Communicator.cpp nccl/ExchangedSums.cpp nccl/NcclCommunicators.cpp nccl/Watchdog.cpp
  ${SHEAF_CUDA_FUNCTION_SOURCES})
# Only in the real library: the double has others in test/emulation.
set(SHEAF_CUDA_REAL_SOURCES FusedKernels.cpp nccl/NcclApi.cpp)
set(SHEAF_CUDA_KERNELS
  kernels/HandOver.cu kernels/Mark.cu kernels/Reduce.cu
  ${SHEAF_CUDA_FUNCTION_KERNELS})
# What both share with the rest of the runtime, compiled in (hidden) as in the CPU's library.
set(SHEAF_CUDA_SHARED_SOURCES
  ../../comm/AbortSignal.cpp ../../plan/Generations.cpp ../../plan/Words.cpp ../../base/AtomicFile.cpp ../../base/Hash.cpp ../../base/Text.cpp
  ../cpu/CommitLog.cpp ../cpu/ComputePool.cpp ../cpu/DurableState.cpp ../cpu/Features.cpp ../cpu/FileArena.cpp ../cpu/KernelImages.cpp
  ../cpu/RaceRanges.cpp)
foreach(list SHEAF_CUDA_SOURCES SHEAF_CUDA_REAL_SOURCES SHEAF_CUDA_KERNELS SHEAF_CUDA_SHARED_SOURCES)
  list(TRANSFORM ${list} PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
endforeach()
include(${CMAKE_CURRENT_LIST_DIR}/../../plan/sources.cmake)  # SHEAF_CALL_SOURCES
list(TRANSFORM SHEAF_CALL_SOURCES PREPEND ${CMAKE_CURRENT_LIST_DIR}/../../plan/)
list(APPEND SHEAF_CUDA_SHARED_SOURCES ${SHEAF_CALL_SOURCES})
