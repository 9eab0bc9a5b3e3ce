// Options of `tfctl bench VERB`: rows for the verb table.
#pragma once

#include "ctl/verb.h"

namespace tensorfold::ctl {

#define TF_BENCH_COMMON_OPTIONS                                                  \
  {"--url", "URL", "the server (http://127.0.0.1:8888)"},                        \
      {"--model", "NAME", "model to ask for (the first that the server lists)"}, \
      {"--key-file", "FILE", "file with the API key"},                           \
      {"--idle-timeout", "SECONDS", "longest silence of the server (900)"},      \
      {"--plain", "", "leave chat_template_kwargs out of requests"}, {           \
    "--json", "", "print JSON with every repetition"                             \
  }

inline constexpr Option kBenchReadyOptions[] = {
    TF_BENCH_COMMON_OPTIONS,
    {"--pid", "PID", "count from the start of this process"},
    {"--poll", "SECONDS", "between two attempts (0.5)"},
    {"--wait", "SECONDS", "give up after (3600)"},
};
inline constexpr Option kBenchDecodeOptions[] = {
    TF_BENCH_COMMON_OPTIONS,
    {"--set", "a|b", "prompts: code, prose and json, or code, prose and count (a)"},
    {"--tokens", "N", "tokens of a reply (512 in set a, 384 in set b)"},
    {"--reps", "N", "repetitions (3)"},
    {"--ignore-eos", "", "replies go on to their last token"},
};
inline constexpr Option kBenchConcurrentOptions[] = {
    TF_BENCH_COMMON_OPTIONS,
    {"--streams", "LIST", "replies at once (2,4)"},
    {"--set", "a|b", "prompts, as in decode (a)"},
    {"--tokens", "N", "tokens of a reply (256)"},
    {"--reps", "N", "repetitions (9)"},
    {"--long-prompt", "N", "a cold prompt of N tokens once all replies have begun"},
    {"--seed", "N", "of its words (from the clock)"},
    {"--ignore-eos", "", "replies go on to their last token"},
};
inline constexpr Option kBenchSustainedOptions[] = {
    TF_BENCH_COMMON_OPTIONS,
    {"--streams", "LIST", "replies at once (4)"},
    {"--set", "a|b", "prompts, as in decode (a)"},
    {"--tokens", "N", "tokens of a reply (256)"},
    {"--seconds", "S", "length of the window (90)"},
    {"--ignore-eos", "", "replies go on to their last token"},
};
inline constexpr Option kBenchPrefillOptions[] = {
    TF_BENCH_COMMON_OPTIONS,
    {"--lengths", "LIST", "prompt tokens (8192,32768,131072)"},
    {"--reps", "N", "repetitions (1)"},
    {"--seed", "N", "of the words (from the clock)"},
};
inline constexpr Option kBenchDepthOptions[] = {
    TF_BENCH_COMMON_OPTIONS,
    {"--lengths", "LIST", "prompt tokens (131072)"},
    {"--tokens", "N", "tokens of a reply (256)"},
    {"--reps", "N", "prompts of each length (3)"},
    {"--seed", "N", "of the words (from the clock)"},
};
inline constexpr Option kBenchNeedleOptions[] = {
    TF_BENCH_COMMON_OPTIONS,
    {"--lengths", "LIST", "prompt tokens (8192,32768,131072)"},
    {"--seed", "N", "of the words (from the clock)"},
};
inline constexpr Option kBenchFirstLongOptions[] = {
    TF_BENCH_COMMON_OPTIONS,
    {"--length", "N", "prompt tokens (32768)"},
    {"--seed", "N", "of the words (from the clock)"},
};

#undef TF_BENCH_COMMON_OPTIONS

}  // namespace tensorfold::ctl
