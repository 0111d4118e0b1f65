# `cmake --install BUILD --prefix FOLDER`: the program and the libraries that it needs, but for the C library's and CUDA's, in a folder that
# may be moved, to other machines too. An old-style run path, because only that one holds for the libraries' own libraries.
include(GNUInstallDirs)
set_target_properties(troupe PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR};/usr/local/cuda/lib64")
target_link_options(troupe PRIVATE "LINKER:--disable-new-dtags")
install(TARGETS troupe RUNTIME_DEPENDENCY_SET troupe_needs)
install(RUNTIME_DEPENDENCY_SET troupe_needs
  PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|rt|dl|pthread|resolv)\\.so" "^lib(cuda|cudart|cublas|cublasLt|nccl)\\.so")
install(DIRECTORY bench/configs/ DESTINATION "${CMAKE_INSTALL_DATADIR}/troupe/configs")
install(FILES LICENSE README.md DESTINATION "${CMAKE_INSTALL_DOCDIR}")
