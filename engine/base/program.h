// Another program, run to its end: fed, heard within a bound, ended at a deadline. No shell is
// between: the words reach it as they are.
//
// Owner: the caller's thread, which waits. Safe from several threads at once. What the program
// leaves behind in the background is not waited for, even if it keeps the pipe open.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/status.h"

namespace tensorfold {

inline constexpr int64_t kProgramOutputBytesMax = int64_t{16} << 20;  // kept of one program

struct ProgramRun {
  enum class Input : unsigned char {
    kCallers,  // reads what the caller would read
    kNothing,
    kText,  // `input`, then the end
  };
  Input from = Input::kCallers;
  std::string input;
  bool capture = false;      // keep its standard output, instead of the caller's
  bool drop_errors = false;  // its standard error goes nowhere, instead of to the caller's
  int64_t output_bytes_max = kProgramOutputBytesMax;  // what is past it is read and dropped
  int64_t deadline_ms = 0;  // it is killed then; 0: it may take as long as it wants
};

struct ProgramEnd {
  int exit_status = 0;  // 128 + N: ended by signal N
  bool timed_out = false;
  std::string output;  // with `capture`
};

// Runs a program that PATH finds. kNotFound: there is none of that name; kIo: it cannot be started.
Result<ProgramEnd> run_program(const std::vector<std::string>& argv, const ProgramRun& run = {});

}  // namespace tensorfold
