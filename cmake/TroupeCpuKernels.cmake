# Nobody asks which floating-point exceptions a kernel raised, and a compiler that must keep them does not make vectors of an if.
file(GLOB cpu_sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/kernels/*_cpu.cpp")
set_property(SOURCE ${cpu_sources} APPEND PROPERTY COMPILE_OPTIONS -fno-trapping-math)
# Instruction sets of the linear kernels, one file each; the program picks at run time. No other file gets such flags.
# Contraction would let the compiler round differently in two copies of one kernel, and a row's result must not depend on its batch.
file(GLOB linear_sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/kernels/linear/*.cpp")
set_property(SOURCE ${linear_sources} APPEND PROPERTY COMPILE_OPTIONS -ffp-contract=off)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set_property(SOURCE "${CMAKE_SOURCE_DIR}/kernels/linear/avx2.cpp" APPEND PROPERTY COMPILE_OPTIONS -mavx2 -mfma -mf16c)
  set_property(SOURCE "${CMAKE_SOURCE_DIR}/kernels/linear/avx512vnni.cpp" APPEND PROPERTY COMPILE_OPTIONS
    -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mfma -mf16c)
endif()
