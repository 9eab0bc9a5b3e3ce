// The functions behind the verb table, one declaration per verb.
#pragma once

#include "ctl/verb.h"

namespace tensorfold::ctl {

int run_status(const Invocation& call);            // status_verb.cc
int run_health(const Invocation& call);            // status_verb.cc
int run_version(const Invocation& call);           // version_verb.cc
int run_model_inspect(const Invocation& call);     // model_verbs.cc
int run_model_prepare(const Invocation& call);     // model_verbs.cc
int run_model_dequantize(const Invocation& call);  // model_verbs.cc

int run_model_quantize(const Invocation& call);  // quantize_verb.cc
int run_model_eval(const Invocation& call);      // eval_verb.cc

int run_prompt_encode(const Invocation& call);  // prompt_verbs.cc
int run_prompt_decode(const Invocation& call);  // prompt_verbs.cc
int run_prompt_check(const Invocation& call);   // prompt_verbs.cc

}  // namespace tensorfold::ctl
