# Cross build for arm64: Debian's crossbuild-essential-arm64, the libraries from a folder that
# packaging/arm64-sysroot made, tests under qemu-user.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

set(TF_ARM64_SYSROOT ${CMAKE_CURRENT_LIST_DIR}/../../build/arm64-sysroot CACHE PATH
  "Folder made by packaging/arm64-sysroot")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES TF_ARM64_SYSROOT)
get_filename_component(sysroot ${TF_ARM64_SYSROOT} ABSOLUTE)
set(libraries ${sysroot}/usr/lib/aarch64-linux-gnu)

set(CMAKE_FIND_ROOT_PATH ${sysroot} /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE BOTH)  # llhttp's sources are the host's
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_LIBDIR} ${libraries}/pkgconfig:${sysroot}/usr/share/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${sysroot})
set(include_flags "-isystem ${sysroot}/usr/include -isystem ${sysroot}/usr/include/aarch64-linux-gnu")
set(CMAKE_C_FLAGS_INIT "${include_flags}")
set(CMAKE_CXX_FLAGS_INIT "${include_flags}")
set(link_flags "-L${libraries} -Wl,-rpath-link,${libraries}:${sysroot}/lib/aarch64-linux-gnu")
set(CMAKE_EXE_LINKER_FLAGS_INIT "${link_flags}")

find_program(TF_QEMU NAMES qemu-aarch64 qemu-aarch64-static)
if(TF_QEMU)
  set(CMAKE_CROSSCOMPILING_EMULATOR ${TF_QEMU} -L /usr/aarch64-linux-gnu
    -E LD_LIBRARY_PATH=${libraries}:${sysroot}/lib/aarch64-linux-gnu)
endif()
