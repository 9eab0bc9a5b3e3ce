// The table of verbs. A verb's code is in <noun>_verbs.cc; each row here is one line of --help.
#include <array>

#include "ctl/bench_options.h"
#include "ctl/verb.h"
#include "ctl/verbs.h"

namespace tensorfold::ctl {
namespace {

constexpr Option kVersionOptions[] = {{"--json", "", "print JSON"}};
constexpr Option kStatusOptions[] = {{"--json", "", "print the daemon's JSON (docs/api.md)"}};
constexpr Option kHealthOptions[] = {
    {"--wait", "SECONDS", "wait until it is ready"},
    {"--json", "", "print JSON"},
};

constexpr Option kWatchOptions[] = {
    {"--interval", "SECONDS", "between two looks (1)"},
    {"--count", "N", "looks, 0: no end (0)"},
    {"--json", "", "print the daemon's JSON, a line each time"},
};
constexpr Option kMetricsOptions[] = {{"--json", "", "print JSON"}};
constexpr Option kReloadOptions[] = {
    {"--wait", "SECONDS", "then wait until it is ready"},
    {"--json", "", "print JSON"},
};
constexpr Option kDrainOptions[] = {
    {"--wait", "SECONDS", "then wait until no reply is left"},
    {"--json", "", "print JSON"},
};
constexpr Option kResumeOptions[] = {{"--json", "", "print JSON"}};
constexpr Option kStopOptions[] = {
    {"--now", "", "cut the replies in progress"},
    {"--wait", "SECONDS", "then wait until it has ended"},
    {"--json", "", "print JSON"},
};
constexpr Option kCacheStatusOptions[] = {{"--json", "", "print JSON"}};
constexpr Option kCacheFlushOptions[] = {
    {"--spill", "", "what is on disk too"},
    {"--json", "", "print JSON"},
};
constexpr Option kLogLevelOptions[] = {{"--json", "", "print JSON"}};
constexpr Option kLogsOptions[] = {
    {"-f", "", "go on as lines come"},
    {"--since", "TIME", "from then on, as journalctl reads times"},
    {"--lines", "N", "only the last N"},
    {"--explain", "", "with the explanations of events"},
    {"--unit", "NAME", "of another unit"},
    {"--json", "", "print JSON"},
};
constexpr Option kRequestListOptions[] = {{"--json", "", "print JSON"}};
constexpr Option kRequestCancelOptions[] = {{"--json", "", "print JSON"}};
constexpr Option kConfigShowOptions[] = {
    {"--all", "", "also what has its default"},
    {"--json", "", "print JSON"},
};

constexpr Option kVerifyOptions[] = {
    {"--url", "URL", "the server (http://127.0.0.1:8888)"},
    {"--key-file", "FILE", "its API key, the first of this file"},
    {"--model", "NAME", "the model to ask; the first served one"},
    {"--json", "", "print JSON"},
};
constexpr Option kLinkProbeOptions[] = {
    {"--json", "", "print JSON"},
};

constexpr Option kDoctorOptions[] = {
    {"--peer", "HOST", "also ask the other machine, over ssh"},
    {"--config", "FILE", "settings (/etc/tensorfoldd/tensorfoldd.toml, if it is there)"},
    {"--model", "DIR", "model folder, instead of model.path"},
    {"--fix-hints", "", "also print the commands that put things right"},
    {"--root", "DIR", "a recorded machine instead of this one"},
    {"--json", "", "print JSON"},
};

constexpr Option kModelFetchOptions[] = {
    {"--repo", "R", "OWNER/NAME of another repository than the published model's"},
    {"--revision", "V", "its branch, tag or commit (main)"},
    {"--dir", "DIR", "where the files go (/var/lib/tensorfoldd/model)"},
    {"--base-url", "U", "the server (https://huggingface.co)"},
    {"--limit-rate", "N", "bytes per second of all together, such as 20M"},
    {"--parallel", "N", "files at a time, 1 to 16 (4)"},
    {"--token-file", "FILE", "an access token, in a file that only its owner may read"},
    {"--ca-file", "FILE", "certificates of authorities, instead of the system's"},
    {"--stall", "SECONDS",
     "a connection that brings next to nothing for so long is made anew (30)"},
    {"--json", "", "print JSON"},
};
constexpr Option kModelVerifyOptions[] = {
    {"--parallel", "N", "files at a time (one per core)"},
    {"--record", "", "first write down what is there as what should be"},
    {"--repo", "R", "compare with this repository instead of the folder's record"},
    {"--published", "", "compare with the published model"},
    {"--revision", "V", "of --repo: branch, tag or commit (main)"},
    {"--base-url", "U", "the server (https://huggingface.co)"},
    {"--token-file", "FILE", "an access token, in a file that only its owner may read"},
    {"--ca-file", "FILE", "certificates of authorities, instead of the system's"},
    {"--json", "", "print JSON"},
};
constexpr Option kModelSyncOptions[] = {
    {"--dir", "DIR", "the folder here (/var/lib/tensorfoldd/model)"},
    {"--to", "DIR", "the folder there (the same)"},
    {"--limit-rate", "N", "bytes per second, such as 100M"},
};

constexpr Option kModelInspectOptions[] = {
    {"--json", "", "print JSON"},
    {"--engram", "DIR", "folder with the Engram tables, if it is another"},
};
constexpr Option kModelPrepareOptions[] = {
    {"--model", "DIR", "model folder"},
    {"--engram", "DIR", "folder with the Engram tables, if it is another"},
    {"--out", "DIR", "where the images go"},
    {"--world", "N", "how many ranks"},
    {"--rank", "R", "only the image of rank R"},
    {"--with-engram", "", "put this rank's rows of the Engram tables into the image"},
};

constexpr Option kModelQuantizeOptions[] = {
    {"--bits", "N", "bits a weight, 1 to 8; between two widths: the average (4)"},
    {"--codebook", "NAME", "mul1, mcg or 3inst (mul1)"},
    {"--head-bits", "N", "of the output head; 16 keeps it as it is (6)"},
    {"--attention-bits", "N", "of all attention projections"},
    {"--expert-bits", "N", "of the routed experts"},
    {"--shared-bits", "N", "of the shared experts"},
    {"--draft-bits", "N", "of the drafter (mtp.*)"},
    {"--hessian", "FILE", "second moments of inputs (docs/quantize.md)"},
    {"--out-scales", "WHEN", "scale outputs: auto, always or never (auto)"},
    {"--threads", "N", "threads (one per core)"},
    {"--json", "", "print JSON"},
};

constexpr Option kModelEvalOptions[] = {
    {"--model", "DIR", "model folder"},
    {"--golden", "FILE", "recorded runs or layers (safetensors, also .xz)"},
    {"--units", "FILE", "unit vectors of single operations"},
    {"--bounds", "FILE", "bounds to keep (JSON); without it nothing has a bound"},
    {"--bounds-section", "NAME", "section of it (by the model's kind of weights)"},
    {"--prompts", "FILE", "holds the prompts that the golden file leaves out"},
    {"--prompt", "NAME", "only this prompt"},
    {"--scores", "fp32|bf16", "rounding of index scores (as the golden file was made)"},
    {"--ranks", "N", "ranks, as threads of this process (1)"},
    {"--chunk", "N", "prompt rows in a step (all)"},
    {"--device", "cpu|cuda|cuda:N", "where it runs (cpu)"},
    {"--threads", "N", "threads per rank (one per core)"},
    {"--all", "", "print every layer, not only the worst"},
    {"--json", "", "print JSON"},
};

constexpr Option kPromptEncodeOptions[] = {
    {"--tokens", "", "print token ids instead of the text"},
    {"--tokenizer", "FILE", "tokenizer.json or model folder (the embedded model's)"},
    {"--format", "NAME", "v4.1, v4 or v4-0731 (v4.1)"},
    {"--control-tokens", "", "control text inside messages becomes control tokens"},
};
constexpr Option kPromptDecodeOptions[] = {
    {"--tokenizer", "FILE", "tokenizer.json or model folder (the embedded model's)"},
    {"--json", "", "print JSON with each token's text"},
};
constexpr Option kPromptCheckOptions[] = {
    {"--tokenizer", "FILE", "compare token ids too"},
    {"--json", "", "print JSON"},
};

constexpr Option kGrammarCheckOptions[] = {
    {"--schema", "FILE", "a JSON Schema"},
    {"--regex", "TEXT", "a regular expression"},
    {"--choice", "FILE", "texts: a JSON list, or one a line"},
    {"--ebnf", "FILE", "a grammar in GBNF"},
    {"--tools", "FILE", "tools as a request has them, or the request"},
    {"--instance", "FILE", "a reply to try"},
    {"--serving", "", "white space, order and undeclared members as in serving"},
    {"--json", "", "print JSON"},
};
constexpr Option kGrammarBenchOptions[] = {
    {"--tokenizer", "FILE", "tokenizer.json or model folder (the embedded model's)"},
    {"--json", "", "print JSON"},
};

constexpr Verb kVerbs[] = {
    // noun, name, positional, summary, options, offline, run
    {"", "status", "", "the state of the service", kStatusOptions, false, run_status},
    {"", "health", "", "whether a request would be answered", kHealthOptions, false, run_health},
    {"", "watch", "", "the state, again and again", kWatchOptions, false, run_watch},
    {"", "metrics", "[NAME...]", "counters and times, as Prometheus reads them", kMetricsOptions,
     false, run_metrics},
    {"", "reload", "", "read settings and API keys again", kReloadOptions, false, run_reload},
    {"", "drain", "", "refuse new requests, let the others finish", kDrainOptions, false,
     run_drain},
    {"", "resume", "", "accept requests again", kResumeOptions, false, run_resume},
    {"", "stop", "", "end the service's process", kStopOptions, false, run_stop},
    {"", "logs", "", "the service's lines in the journal", kLogsOptions, true, run_logs},
    {"cache", "status", "", "what the prefix cache holds and saves", kCacheStatusOptions, false,
     run_cache_status},
    {"cache", "flush", "", "forget cached prefixes; replies in progress go on", kCacheFlushOptions,
     false, run_cache_flush},
    {"log", "level", "[LEVEL]", "print or set what is logged", kLogLevelOptions, false,
     run_log_level},
    {"request", "list", "", "the replies in progress", kRequestListOptions, false,
     run_request_list},
    {"request", "cancel", "ID...", "end replies in progress", kRequestCancelOptions, false,
     run_request_cancel},
    {"config", "check", "[FILE]", "whether a settings file is right", {}, true, run_config_check},
    {"config", "show", "", "the settings in use", kConfigShowOptions, false, run_config_show},
    {"", "version", "", "print the version", kVersionOptions, true, run_version},
    {"", "verify", "", "five requests that show whether a server answers as it should",
     kVerifyOptions, true, run_verify},
    {"", "doctor", "", "check this machine; exit status 1 if something would fail", kDoctorOptions,
     true, run_doctor},
    {"link", "probe", "HOST HERE THERE", "measure the path between two addresses, both ways",
     kLinkProbeOptions, true, run_link_probe},
    {"link",
     "answer",
     "HERE PORT THERE TOKEN",
     "the other end of a measurement; link probe starts it over ssh",
     {},
     true,
     run_link_answer},
    {"",
     "completion",
     "SHELL",
     "print completions for bash, zsh or fish",
     {},
     true,
     run_completion},
    {"model", "fetch", "", "download the published model, or another repository",
     kModelFetchOptions, true, run_model_fetch},
    {"model", "verify", "DIR", "compare every file of a model folder with its hash",
     kModelVerifyOptions, true, run_model_verify},
    {"model", "sync", "HOST", "copy a model folder to another machine and verify it there",
     kModelSyncOptions, true, run_model_sync},
    {"model", "inspect", "DIR", "what is in a model folder, per tensor and per rank",
     kModelInspectOptions, true, run_model_inspect},
    {"model", "prepare", "", "write each rank's image of a model", kModelPrepareOptions, true,
     run_model_prepare},
    {"model",
     "dequantize",
     "IN OUT",
     "turn a model into one of BF16 weights",
     {},
     true,
     run_model_dequantize},
    {"model", "quantize", "IN OUT", "write a model folder as an EXL3 pack", kModelQuantizeOptions,
     true, run_model_quantize},
    {"model", "eval", "", "compare a model with recorded results", kModelEvalOptions, true,
     run_model_eval},
    {"prompt", "encode", "[FILE]", "a chat request's body to the model's prompt",
     kPromptEncodeOptions, true, run_prompt_encode},
    {"prompt", "decode", "[FILE]", "token ids to text", kPromptDecodeOptions, true,
     run_prompt_decode},
    {"prompt", "check", "FILE", "run a file of prompt cases; exit status 1 if one is wrong",
     kPromptCheckOptions, true, run_prompt_check},
    {"grammar", "check", "", "whether a constraint can be enforced, and what it accepts",
     kGrammarCheckOptions, true, run_grammar_check},
    {"grammar", "bench", "DIR", "masks and verdicts over a folder of schemas", kGrammarBenchOptions,
     true, run_grammar_bench},
    {"bench", "ready", "", "time until the first token", kBenchReadyOptions, true, run_bench_ready},
    {"bench", "decode", "", "speed of one reply at a time", kBenchDecodeOptions, true,
     run_bench_decode},
    {"bench", "concurrent", "", "speed of replies beside each other", kBenchConcurrentOptions, true,
     run_bench_concurrent},
    {"bench", "sustained", "", "speed with so many replies always in flight",
     kBenchSustainedOptions, true, run_bench_sustained},
    {"bench", "prefill", "", "speed of cold prompts", kBenchPrefillOptions, true,
     run_bench_prefill},
    {"bench", "depth", "", "speed of a reply behind a long prompt", kBenchDepthOptions, true,
     run_bench_depth},
    {"bench", "needle", "", "whether a phrase in a long prompt is found", kBenchNeedleOptions, true,
     run_bench_needle},
    {"bench", "first-long", "", "the first long prompt after a start beside the third",
     kBenchFirstLongOptions, true, run_bench_first_long},
};

}  // namespace

std::span<const Verb> verb_table() { return kVerbs; }

}  // namespace tensorfold::ctl
