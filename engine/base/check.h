// Checks of what must hold. A failed check aborts with the expression, its place and a message:
// it means a fault of ours, never bad input (bad input is a Status).
#pragma once

namespace tensorfold {
[[noreturn]] void check_failed(const char* file, int line, const char* expr, const char* detail);
[[noreturn]] void check_op_failed(const char* file, int line, const char* expr, long long a,
                                  long long b);
}  // namespace tensorfold

#define TF_CHECK(cond) \
  ((cond) ? (void)0 : ::tensorfold::check_failed(__FILE__, __LINE__, #cond, ""))
#define TF_CHECK_MSG(cond, msg) \
  ((cond) ? (void)0 : ::tensorfold::check_failed(__FILE__, __LINE__, #cond, msg))
#define TF_CHECK_OP(a, op, b)                                                                      \
  do {                                                                                             \
    const auto tf_a_ = (a);                                                                        \
    const auto tf_b_ = (b);                                                                        \
    if (!(tf_a_ op tf_b_))                                                                         \
      ::tensorfold::check_op_failed(__FILE__, __LINE__, #a " " #op " " #b,                         \
                                    static_cast<long long>(tf_a_), static_cast<long long>(tf_b_)); \
  } while (0)
#define TF_CHECK_EQ(a, b) TF_CHECK_OP(a, ==, b)
#define TF_CHECK_LT(a, b) TF_CHECK_OP(a, <, b)
#define TF_CHECK_LE(a, b) TF_CHECK_OP(a, <=, b)
#define TF_CHECK_GE(a, b) TF_CHECK_OP(a, >=, b)
