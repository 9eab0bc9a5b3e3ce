#include "ctl/help.h"

#include <ostream>

#include "ctl/verb.h"

namespace tensorfold::ctl {
namespace {

bool is_meant(const Verb& verb, std::span<const std::string> words) {
  if (words.empty()) return true;
  if (verb.noun.empty()) return words[0] == verb.name;
  return words[0] == verb.noun && (words.size() == 1 || words[1] == verb.name);
}

void print_verb(const Verb& verb, std::ostream& out) {
  out << "  ";
  if (!verb.noun.empty()) out << verb.noun << ' ';
  out << verb.name;
  if (!verb.positional.empty()) out << ' ' << verb.positional;
  out << "\n      " << verb.summary << (verb.offline ? " (offline)" : "") << "\n";
  for (const Option& option : verb.options) {
    out << "      " << option.name;
    if (!option.value.empty()) out << ' ' << option.value;
    out << "  " << option.help << "\n";
  }
}

}  // namespace

bool print_help(std::span<const std::string> words, std::ostream& out) {
  std::vector<const Verb*> meant;
  for (const Verb& verb : verb_table())
    if (is_meant(verb, words)) meant.push_back(&verb);
  if (meant.empty()) return false;
  out << "usage: tfctl [--host HOST] [--socket PATH | --instance NAME] [--timeout SECONDS] "
         "[--json] "
         "NOUN VERB [ARGS]\n"
         "--host HOST runs tfctl on another machine, over ssh; --help behind a noun or a verb "
         "shows "
         "it alone\n\n";
  for (const Verb* verb : meant) print_verb(*verb, out);
  return true;
}

std::vector<std::string> verbs_of(const std::string& noun) {
  std::vector<std::string> out;
  for (const Verb& verb : verb_table())
    if (!noun.empty() && verb.noun == noun) out.emplace_back(verb.name);
  return out;
}

}  // namespace tensorfold::ctl
