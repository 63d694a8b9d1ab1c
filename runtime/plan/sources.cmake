# The library calls, without what only the loader needs of them: devices compile these in. Relative to runtime/plan.
set(SHEAF_CALL_SOURCES
  Library.cpp RankMemory.cpp StridedCopy.cpp Tiles.cpp Types.cpp
  calls/Attention.cpp calls/Gemm.cpp calls/Moves.cpp calls/Selection.cpp calls/Sums.cpp calls/Windows.cpp)
