// The functions behind the verb table, one declaration per verb.
#pragma once

#include "ctl/verb.h"

namespace tensorfold::ctl {

int run_status(const Invocation& call);            // status_verb.cc
int run_health(const Invocation& call);            // status_verb.cc
int run_watch(const Invocation& call);             // watch_verb.cc
int run_metrics(const Invocation& call);           // metrics_verb.cc
int run_reload(const Invocation& call);            // service_verbs.cc
int run_drain(const Invocation& call);             // service_verbs.cc
int run_resume(const Invocation& call);            // service_verbs.cc
int run_stop(const Invocation& call);              // service_verbs.cc
int run_log_level(const Invocation& call);         // service_verbs.cc
int run_logs(const Invocation& call);              // service_verbs.cc
int run_cache_status(const Invocation& call);      // cache_verbs.cc
int run_cache_flush(const Invocation& call);       // cache_verbs.cc
int run_request_list(const Invocation& call);      // request_verbs.cc
int run_request_cancel(const Invocation& call);    // request_verbs.cc
int run_config_check(const Invocation& call);      // config_verbs.cc
int run_config_show(const Invocation& call);       // config_verbs.cc
int run_version(const Invocation& call);           // version_verb.cc
int run_doctor(const Invocation& call);            // doctor_verb.cc
int run_link_probe(const Invocation& call);        // link_verbs.cc
int run_link_answer(const Invocation& call);       // link_verbs.cc
int run_verify(const Invocation& call);            // verify_verb.cc
int run_completion(const Invocation& call);        // completion_verb.cc
int run_model_inspect(const Invocation& call);     // model_verbs.cc
int run_model_prepare(const Invocation& call);     // model_verbs.cc
int run_model_dequantize(const Invocation& call);  // model_verbs.cc

int run_model_fetch(const Invocation& call);   // model_files_verbs.cc
int run_model_verify(const Invocation& call);  // model_files_verbs.cc
int run_model_sync(const Invocation& call);    // model_files_verbs.cc

int run_model_quantize(const Invocation& call);  // quantize_verb.cc
int run_model_eval(const Invocation& call);      // eval_verb.cc

int run_prompt_encode(const Invocation& call);  // prompt_verbs.cc
int run_prompt_decode(const Invocation& call);  // prompt_verbs.cc
int run_prompt_check(const Invocation& call);   // prompt_verbs.cc

int run_bench_ready(const Invocation& call);       // bench_verbs.cc
int run_bench_decode(const Invocation& call);      // bench_verbs.cc
int run_bench_concurrent(const Invocation& call);  // bench_verbs.cc
int run_bench_sustained(const Invocation& call);   // bench_verbs.cc
int run_bench_prefill(const Invocation& call);     // bench_verbs.cc
int run_bench_depth(const Invocation& call);       // bench_verbs.cc
int run_bench_needle(const Invocation& call);      // bench_verbs.cc
int run_bench_first_long(const Invocation& call);  // bench_verbs.cc

int run_grammar_check(const Invocation& call);  // grammar_verbs.cc
int run_grammar_bench(const Invocation& call);  // grammar_verbs.cc

}  // namespace tensorfold::ctl
