# MPI for `sheaf-run --transport mpi`: Open MPI and MPICH, each if it is there. Debian installs both side by side, so each
# library asks its own compiler wrapper where its MPI is; `mpicc` alone is the one of update-alternatives. Elsewhere
# -DSHEAF_MPICC_openmpi=... or -DSHEAF_MPICC_mpich=... names the wrapper.

# sheaf_find_mpi(name NAMES wrapper... ASK flag...): sets SHEAF_MPI_<name>_{INCLUDE,LINK} from what the wrapper prints.
function(sheaf_find_mpi name)
  cmake_parse_arguments(ARG "" "" "NAMES;ASK" ${ARGN})
  find_program(SHEAF_MPICC_${name} NAMES ${ARG_NAMES} DOC "The compiler wrapper of ${name}")
  if(SHEAF_MPICC_${name})
    execute_process(COMMAND ${SHEAF_MPICC_${name}} ${ARG_ASK} OUTPUT_VARIABLE line ERROR_QUIET RESULT_VARIABLE failed)
    separate_arguments(words UNIX_COMMAND "${line}")
    set(include ${words})
    list(FILTER include INCLUDE REGEX "^-I")
    list(TRANSFORM include REPLACE "^-I" "")
    set(link ${words})
    list(FILTER link INCLUDE REGEX "^-[Ll]")
    if(NOT failed AND link)
      list(GET include 0 first)
      if(EXISTS ${first}/mpi.h)
        message(STATUS "MPI: ${name} by ${SHEAF_MPICC_${name}}")
        set(SHEAF_MPI_${name}_INCLUDE ${include} PARENT_SCOPE)
        set(SHEAF_MPI_${name}_LINK ${link} PARENT_SCOPE)
        return()
      endif()
    endif()
  endif()
  message(STATUS "MPI: no ${name}; libsheaf_mpi_${name}.so is left out")
endfunction()

sheaf_find_mpi(openmpi NAMES mpicc.openmpi ASK --showme)
sheaf_find_mpi(mpich NAMES mpicc.mpich ASK -show)
