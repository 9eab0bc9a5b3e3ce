// The functions behind the verb table, one declaration per verb.
#pragma once

#include "ctl/verb.h"

namespace tensorfold::ctl {

int run_version(const Invocation& call);  // version_verb.cc

}  // namespace tensorfold::ctl
