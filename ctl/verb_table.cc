// The table of verbs. A verb's code is in <noun>_verbs.cc; each row here is one line of --help.
#include <array>

#include "ctl/verb.h"
#include "ctl/verbs.h"

namespace tensorfold::ctl {
namespace {

constexpr Option kVersionOptions[] = {{"--json", "", "print JSON"}};

constexpr Verb kVerbs[] = {
    // noun, name, positional, summary, options, offline, run
    {"", "version", "", "print the version", kVersionOptions, true, run_version},
};

}  // namespace

std::span<const Verb> verb_table() { return kVerbs; }

}  // namespace tensorfold::ctl
