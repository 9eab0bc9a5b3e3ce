#include <ostream>

#include "ctl/verbs.h"

namespace tensorfold::ctl {

int run_version(const Invocation& call) {
  if (call.json) {
    *call.out << "{\"schema_version\": 1, \"version\": \"" TF_VERSION "\"}\n";
  } else {
    *call.out << "tfctl " TF_VERSION "\n";
  }
  return kExitOk;
}

}  // namespace tensorfold::ctl
