// What tfctl says of itself: the usage line and rows of the verb table, all or some.
#pragma once

#include <iosfwd>
#include <span>
#include <string>
#include <vector>

namespace tensorfold::ctl {

// The usage and the verbs that `words` name: none names all, a noun its verbs, "NOUN VERB" or a
// verb itself. False, and nothing written, when no verb is meant; words after a verb do not matter.
bool print_help(std::span<const std::string> words, std::ostream& out);

// Names of the verbs of a noun, in the table's order; empty: there is no such noun.
std::vector<std::string> verbs_of(const std::string& noun);

}  // namespace tensorfold::ctl
