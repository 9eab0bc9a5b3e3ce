# Compiler settings for every target, and the two helpers that folders use.

add_library(tf_options INTERFACE)
target_include_directories(tf_options INTERFACE ${PROJECT_SOURCE_DIR})
# Bit-equal results on every processor: no contraction, no reassociation (docs/architecture.md).
target_compile_options(tf_options INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:
  -Wall -Wextra -Wconversion -Wshadow -Wno-psabi -ffp-contract=off -fno-fast-math>)
# GCC 12 warns of overlaps in std::string that cannot happen (GCC bug 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(tf_options INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-Wno-restrict>)
endif()
if(TF_WERROR)
  target_compile_options(tf_options INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-Werror>)
endif()
if(TF_SANITIZE STREQUAL "address")
  target_compile_options(tf_options INTERFACE -fsanitize=address,undefined
    -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(tf_options INTERFACE -fsanitize=address,undefined)
elseif(TF_SANITIZE STREQUAL "thread")
  target_compile_options(tf_options INTERFACE -fsanitize=thread -fno-omit-frame-pointer)
  target_link_options(tf_options INTERFACE -fsanitize=thread)
elseif(NOT TF_SANITIZE STREQUAL "")
  message(FATAL_ERROR "TF_SANITIZE is '${TF_SANITIZE}': use address, thread or nothing")
endif()
if(TF_FUZZ)  # the libraries too: what they do guides the fuzzer
  target_compile_options(tf_options INTERFACE -fsanitize=fuzzer-no-link)
endif()
target_compile_definitions(tf_options INTERFACE
  TF_VERSION="${PROJECT_VERSION}" TF_SOURCE_DIR="${PROJECT_SOURCE_DIR}")

# tf_library(NAME [deps...]): a static library of every .cc in the current folder (not below it).
function(tf_library name)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  if(sources)
    add_library(${name} STATIC ${sources})
    target_link_libraries(${name} PUBLIC tf_options ${ARGN})
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE tf_options ${ARGN})
  endif()
endfunction()

# tf_knows_tree(FILE...): these look for the embedded model in the source tree where none is
# installed. A package's build names a fixed place, so that its programs do not depend on the folder
# that they were built in.
set(TF_TREE_DIR "${PROJECT_SOURCE_DIR}" CACHE STRING "Source tree that the programs look into")
function(tf_knows_tree)
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_DEFINITIONS "TF_TREE_DIR=\"${TF_TREE_DIR}\"")
endfunction()

# tf_test(FILE LABELS l... LIBS lib... [TIMEOUT s] [EXTRA more.cc]): one Boost.Test program per
# *_test.cc file. The ctest name is the path under tests/ without '_test.cc', e.g. kernels/hc_step.
function(tf_test file)
  cmake_parse_arguments(T "" "TIMEOUT" "LABELS;LIBS;EXTRA" ${ARGN})
  file(RELATIVE_PATH rel ${PROJECT_SOURCE_DIR}/tests ${CMAKE_CURRENT_SOURCE_DIR}/${file})
  string(REGEX REPLACE "_test\\.cc$" "" ctest_name ${rel})
  string(REPLACE "/" "_" target "test_${ctest_name}")
  add_executable(${target} ${file} ${T_EXTRA})
  target_link_libraries(${target} PRIVATE tf_options tf_test_main ${T_LIBS})
  target_compile_definitions(${target} PRIVATE TF_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data")
  add_test(NAME ${ctest_name} COMMAND ${target})
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 120)
  endif()
  set_tests_properties(${ctest_name} PROPERTIES LABELS "${T_LABELS}" TIMEOUT ${T_TIMEOUT}
    SKIP_RETURN_CODE 77)
endfunction()

# tf_bench(FILE LIBS lib...): a benchmark program; ctest never runs it (docs/testing.md).
function(tf_bench file)
  cmake_parse_arguments(B "" "" "LIBS" ${ARGN})
  get_filename_component(name ${file} NAME_WE)
  add_executable(${name} ${file})
  target_link_libraries(${name} PRIVATE tf_options ${B_LIBS})
endfunction()

# tf_fuzz(FILE LIBS lib...): a libFuzzer target. With TF_FUZZ (clang) it fuzzes; otherwise a replay
# main runs the committed corpus tests/data/fuzz/<name>/ as the ctest fuzz/<name>.
function(tf_fuzz file)
  cmake_parse_arguments(F "" "" "LIBS" ${ARGN})
  get_filename_component(name ${file} NAME_WE)
  string(REGEX REPLACE "_fuzz$" "" corpus ${name})
  add_executable(${name} ${file})
  target_link_libraries(${name} PRIVATE tf_options ${F_LIBS})
  if(TF_FUZZ)
    target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  else()
    target_sources(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests/fuzz/replay_main.cc)
    add_test(NAME fuzz/${corpus} COMMAND ${name} ${PROJECT_SOURCE_DIR}/tests/data/fuzz/${corpus})
    set_tests_properties(fuzz/${corpus} PROPERTIES LABELS fast TIMEOUT 120)
  endif()
endfunction()
