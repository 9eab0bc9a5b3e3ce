// tfctl completion SHELL: completions made from the verb table. bash and zsh get a function, fish
// one line per word; none of them asks the daemon anything.
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "ctl/verbs.h"

namespace tensorfold::ctl {
namespace {

constexpr std::string_view kGlobalOptions = "--host --socket --instance --timeout --json --help";

std::string words_of(const Verb& verb) {
  return verb.noun.empty() ? std::string(verb.name)
                           : std::string(verb.noun) + " " + std::string(verb.name);
}

// First words: nouns and verbs without a noun, each once, in the table's order.
std::vector<std::string> first_words() {
  std::vector<std::string> out;
  std::set<std::string_view> seen;
  for (const Verb& verb : verb_table()) {
    const std::string_view word = verb.noun.empty() ? verb.name : verb.noun;
    if (seen.insert(word).second) out.emplace_back(word);
  }
  return out;
}

std::vector<std::string> names_below(std::string_view noun) {
  std::vector<std::string> out;
  for (const Verb& verb : verb_table())
    if (verb.noun == noun) out.emplace_back(verb.name);
  return out;
}

std::string spaced(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : " ") + word;
  return out;
}

std::string option_names(const Verb& verb) {
  std::string out;
  for (const Option& option : verb.options) {
    if (!out.empty()) out += " ";
    out += option.name;
  }
  return out;
}

// Options of all verbs whose value is a file or a folder.
std::string path_options() {
  std::set<std::string> names = {"--socket"};
  for (const Verb& verb : verb_table())
    for (const Option& option : verb.options)
      if (option.value == "FILE" || option.value == "DIR") names.emplace(option.name);
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : "|") + name;
  return out;
}

// The part that bash and zsh (by bashcompinit) share.
void print_bash_function(std::ostream& out) {
  out << "_tfctl() {\n"
         "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}\n"
         "  local first= second= i=1 options=\n"
         "  COMPREPLY=()\n"
         "  case \"$previous\" in\n    "
      << path_options()
      << ")\n"
         "      COMPREPLY=($(compgen -f -- \"$current\")); return ;;\n"
         "    --host) COMPREPLY=($(compgen -A hostname -- \"$current\")); return ;;\n"
         "    --timeout|--instance) return ;;\n"
         "  esac\n"
         "  while [ $i -lt \"$COMP_CWORD\" ]; do\n"
         "    case \"${COMP_WORDS[i]}\" in\n"
         "      --host|--socket|--timeout|--instance) i=$((i + 1)) ;;\n"
         "      -*) ;;\n"
         "      *) if [ -z \"$first\" ]; then first=${COMP_WORDS[i]}\n"
         "         elif [ -z \"$second\" ]; then second=${COMP_WORDS[i]}; fi ;;\n"
         "    esac\n"
         "    i=$((i + 1))\n"
         "  done\n"
         "  case \"$first $second\" in\n"
         "    ' ') COMPREPLY=($(compgen -W '"
      << kGlobalOptions << " " << spaced(first_words()) << "' -- \"$current\")); return ;;\n";
  for (const std::string& noun : first_words()) {
    const auto below = names_below(noun);
    if (below.empty()) continue;
    out << "    '" << noun << " ') COMPREPLY=($(compgen -W '" << spaced(below)
        << "' -- \"$current\")); return ;;\n";
  }
  for (const Verb& verb : verb_table()) {
    out << "    '" << words_of(verb) << (verb.noun.empty() ? " '*" : "'") << ") options='"
        << option_names(verb) << "' ;;\n";
  }
  out << "  esac\n"
         "  case \"$current\" in\n"
         "    -*) COMPREPLY=($(compgen -W \"$options\" -- \"$current\")) ;;\n"
         "    *) case \"$first\" in\n"
         "         completion) COMPREPLY=($(compgen -W 'bash zsh fish' -- \"$current\")) ;;\n"
         "         *) COMPREPLY=($(compgen -f -- \"$current\")) ;;\n"
         "       esac ;;\n"
         "  esac\n"
         "}\n";
}

void print_bash(std::ostream& out) {
  out << "# Completions of tfctl for bash, made by 'tfctl completion bash'.\n";
  print_bash_function(out);
  out << "complete -o filenames -F _tfctl tfctl\n";
}

void print_zsh(std::ostream& out) {
  out << "#compdef tfctl\n"
         "# Completions of tfctl for zsh, made by 'tfctl completion zsh'.\n"
         "autoload -U +X bashcompinit && bashcompinit\n";
  print_bash_function(out);
  out << "complete -o filenames -F _tfctl tfctl\n";
}

std::string fish_quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out + "'";
}

void print_fish(std::ostream& out) {
  out << "# Completions of tfctl for fish, made by 'tfctl completion fish'.\n";
  std::set<std::string_view> nouns;
  for (const Verb& verb : verb_table()) {
    const std::string line = "complete -c tfctl ";
    std::string seen = "__fish_seen_subcommand_from " + std::string(verb.name);
    if (verb.noun.empty()) {
      out << line << "-n __fish_use_subcommand -a " << verb.name << " -d "
          << fish_quoted(verb.summary) << "\n";
    } else {
      const std::string below = "__fish_seen_subcommand_from " + std::string(verb.noun);
      if (nouns.insert(verb.noun).second) {
        out << line << "-n __fish_use_subcommand -a " << verb.noun << "\n";
      }
      out << line << "-n '" << below << "; and not __fish_seen_subcommand_from "
          << spaced(names_below(verb.noun)) << "' -a " << verb.name << " -d "
          << fish_quoted(verb.summary) << "\n";
      seen.insert(0, below + "; and ");
    }
    for (const Option& option : verb.options) {
      out << line << "-n '" << seen << "' -l " << option.name.substr(2)
          << (option.value.empty() ? "" : " -r") << " -d " << fish_quoted(option.help) << "\n";
    }
  }
  out << "complete -c tfctl -n '__fish_seen_subcommand_from completion' -f -a 'bash zsh fish'\n"
         "complete -c tfctl -n __fish_use_subcommand -l host -x -a '(__fish_print_hostnames)' -d "
         "'another "
         "machine, over ssh'\n"
         "complete -c tfctl -n __fish_use_subcommand -l socket -r -d 'control socket'\n"
         "complete -c tfctl -n __fish_use_subcommand -l instance -x -d 'name of the instance'\n"
         "complete -c tfctl -n __fish_use_subcommand -l timeout -x -d 'seconds'\n"
         "complete -c tfctl -n __fish_use_subcommand -l json -d 'print JSON'\n";
}

}  // namespace

int run_completion(const Invocation& call) {
  const std::string& shell = call.positional[0];
  if (shell == "bash") {
    print_bash(*call.out);
  } else if (shell == "zsh") {
    print_zsh(*call.out);
  } else if (shell == "fish") {
    print_fish(*call.out);
  } else {
    *call.err << "tfctl: completion knows bash, zsh and fish, not '" << shell << "'\n";
    return kExitUsage;
  }
  return kExitOk;
}

}  // namespace tensorfold::ctl
