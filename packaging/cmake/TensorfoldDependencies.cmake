# The libraries of the project. What is missing is named with the package that brings it.

find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)

function(tf_pkg target module package)
  pkg_check_modules(${target} IMPORTED_TARGET ${module})
  if(NOT ${target}_FOUND)
    message(FATAL_ERROR "${module} not found: install ${package} (packaging/bootstrap does)")
  endif()
endfunction()

tf_pkg(UV libuv libuv1-dev)
tf_pkg(TOMLPP tomlplusplus libtomlplusplus-dev)
tf_pkg(SYSTEMD libsystemd libsystemd-dev)
tf_pkg(XXHASH libxxhash libxxhash-dev)
tf_pkg(UTF8PROC libutf8proc libutf8proc-dev)
tf_pkg(CRYPTO libcrypto libssl-dev)
tf_pkg(URING liburing liburing-dev)
tf_pkg(LZMA liblzma liblzma-dev)
tf_pkg(CURL libcurl libcurl4-openssl-dev)
find_package(simdjson REQUIRED)

# llhttp: a library where there is one (libllhttp-dev), else Debian 12's C sources in node-llhttp.
find_path(LLHTTP_INCLUDE llhttp.h PATH_SUFFIXES llhttp PATHS /usr/share/include /usr/include)
find_library(LLHTTP_LIBRARY llhttp)
if(NOT LLHTTP_INCLUDE)
  message(FATAL_ERROR "llhttp.h not found: install libllhttp-dev, or node-llhttp on Debian 12")
endif()
if(LLHTTP_LIBRARY)
  add_library(llhttp UNKNOWN IMPORTED)
  set_target_properties(llhttp PROPERTIES IMPORTED_LOCATION ${LLHTTP_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${LLHTTP_INCLUDE})
else()
  find_path(LLHTTP_SOURCES llhttp.c PATHS /usr/share/llhttp /usr/src/llhttp/src NO_DEFAULT_PATH)
  if(NOT LLHTTP_SOURCES)
    message(FATAL_ERROR "llhttp's C sources not found: install node-llhttp (Debian 12)")
  endif()
  add_library(llhttp STATIC ${LLHTTP_SOURCES}/api.c ${LLHTTP_SOURCES}/http.c
    ${LLHTTP_SOURCES}/llhttp.c)
  target_include_directories(llhttp SYSTEM PUBLIC ${LLHTTP_INCLUDE})
  target_compile_definitions(llhttp PUBLIC LLHTTP_STRICT_MODE=1)
endif()

if(TF_TESTS)
  find_package(Boost 1.74 REQUIRED COMPONENTS unit_test_framework)
  tf_pkg(PCRE2 libpcre2-8 libpcre2-dev)
endif()
