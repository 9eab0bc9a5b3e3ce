// GET /metrics: one table of values under our own names and, where dashboards know one, under the
// name that vLLM gives it; and the histograms of replies.
#include "daemon/api/api.h"
#include "daemon/metrics/prometheus.h"

namespace tensorfold::api {
namespace {

using metrics::Text;
using metrics::Type;

struct Sources {
  const EngineStats& engine;
  const ReplyService& replies;
  const http::Server* server;
};

struct Metric {
  std::string_view name, vllm;  // without prefix; vllm may be empty
  Type type;
  double (*value)(const Sources&);
  std::string_view help;
};

double share(double part, double whole) { return whole > 0 ? part / whole : 0; }
const http::ServerCounters& http_of(const Sources& s) {
  static const http::ServerCounters kNone;
  return s.server == nullptr ? kNone : s.server->counters();
}

constexpr auto kCounter = Type::kCounter;
constexpr auto kGauge = Type::kGauge;
#define TF_VALUE(expression) \
  [](const Sources& s) -> double { return static_cast<double>(expression); }

// clang-format off
constexpr Metric kMetrics[] = {
    {"ready", "", kGauge, TF_VALUE(s.engine.state == EngineStats::State::kReady),
     "1 while a request would be answered"},
    {"requests_running", "num_requests_running", kGauge, TF_VALUE(s.engine.slots_busy),
     "Sequences in the batch"},
    {"requests_running_max", "", kGauge, TF_VALUE(s.engine.slots_total), "Slots of the batch"},
    {"requests_prefilling", "", kGauge, TF_VALUE(s.engine.prefilling),
     "Sequences whose prompt is being computed"},
    {"requests_waiting", "num_requests_waiting", kGauge, TF_VALUE(s.engine.waiting),
     "Requests that wait for a slot"},
    {"requests_waiting_at_key", "", kGauge, TF_VALUE(s.replies.gate().waiting()),
     "Requests that wait at their key's own bound"},
    {"kv_cache_usage_ratio", "kv_cache_usage_perc", kGauge,
     TF_VALUE(share(static_cast<double>(s.engine.pool_tokens_used),
                    static_cast<double>(s.engine.pool_tokens_total))),
     "Share of the cache pool that is in use, 0 to 1"},
    {"decode_tokens_per_second", "", kGauge, TF_VALUE(s.engine.decode_tokens_per_second),
     "Reply tokens a second, over the last seconds"},
    {"prefill_tokens_per_second", "", kGauge, TF_VALUE(s.engine.prefill_tokens_per_second),
     "Prompt tokens a second, over the last seconds"},
    {"prompt_tokens_total", "prompt_tokens_total", kCounter,
     TF_VALUE(s.engine.prompt_tokens_total), "Prompt tokens, cached ones included"},
    {"prompt_tokens_cached_total", "prefix_cache_hits_total", kCounter,
     TF_VALUE(s.engine.cached_tokens_total), "Prompt tokens that the prefix cache had"},
    {"generation_tokens_total", "generation_tokens_total", kCounter,
     TF_VALUE(s.engine.completion_tokens_total), "Reply tokens"},
    {"decode_rounds_total", "", kCounter, TF_VALUE(s.engine.rounds_total),
     "Steps that made reply tokens"},
    {"steps_total", "", kCounter, TF_VALUE(s.engine.steps_total), "Steps of the engine"},
    {"drafted_tokens_total", "spec_decode_num_draft_tokens_total", kCounter,
     TF_VALUE(s.engine.drafted_total), "Draft tokens that were verified"},
    {"accepted_tokens_total", "spec_decode_num_accepted_tokens_total", kCounter,
     TF_VALUE(s.engine.accepted_total), "Draft tokens that were right"},
    {"forced_drafted_tokens_total", "", kCounter, TF_VALUE(s.engine.forced_drafted_total),
     "Draft tokens that a form left no choice about"},
    {"forced_accepted_tokens_total", "", kCounter, TF_VALUE(s.engine.forced_accepted_total),
     "Those that were right"},
    {"masks_put_off_total", "", kCounter, TF_VALUE(s.engine.masks_put_off_total),
     "Token masks made beside the steps: they took more work than a step has"},
    {"canaries_total", "", kCounter, TF_VALUE(s.engine.canaries_total),
     "Answers of the canary, a fixed prompt that is asked now and then"},
    {"canaries_wrong_total", "", kCounter, TF_VALUE(s.engine.canaries_wrong_total),
     "Those that were not what it said at the start"},
    {"health_alarms_total", "", kCounter, TF_VALUE(s.engine.health_alarms_total),
     "Alarms: a wrong canary, or few right drafts and empty answers together"},
    {"health_alarm", "", kGauge, TF_VALUE(s.engine.health_alarm ? 1 : 0),
     "1 while nothing is drafted because of an alarm"},
    {"new_starts_total", "", kCounter, TF_VALUE(s.engine.new_starts_total),
     "Times that the model was loaded again because the canary stayed wrong"},
    {"restored_proved_total", "", kCounter, TF_VALUE(s.engine.spill.proved_total),
     "Restored prefixes of which rows were computed anew and were equal"},
    {"restored_untrue_total", "", kCounter, TF_VALUE(s.engine.spill.untrue_total),
     "Those that were not equal: dropped, and their prompts computed"},
    {"preemptions_total", "num_preemptions_total", kCounter, TF_VALUE(s.engine.preemptions_total),
     "Background sequences set aside for foreground ones"},
    {"reply_loops_closed_total", "", kCounter, TF_VALUE(s.engine.loops_closed_total),
     "Replies whose thinking went round in circles and was closed"},
    {"reply_loops_ended_total", "", kCounter, TF_VALUE(s.engine.loops_ended_total),
     "Replies that went round in circles and were ended"},
    {"prefill_seconds_total", "", kCounter, TF_VALUE(s.engine.prefill_seconds_total),
     "Seconds of steps with prompt rows"},
    {"decode_seconds_total", "", kCounter, TF_VALUE(s.engine.decode_seconds_total),
     "Seconds of steps with reply rows"},
    {"replies_refused_total", "", kCounter, TF_VALUE(s.replies.counters().refused_total),
     "Requests answered with an error before a token"},
    {"replies_failed_total", "", kCounter, TF_VALUE(s.replies.counters().failed_total),
     "Replies that ended with an error"},
    {"client_disconnections_total", "", kCounter, TF_VALUE(s.replies.counters().cancelled_total),
     "Replies whose client went away"},
    {"http_connections", "", kGauge, TF_VALUE(s.server == nullptr ? 0 : s.server->connections()),
     "Open connections"},
    {"http_requests_total", "", kCounter, TF_VALUE(http_of(s).requests_total), "HTTP requests"},
    {"http_bad_requests_total", "", kCounter, TF_VALUE(http_of(s).bad_requests_total),
     "Requests that were not HTTP or past a bound"},
    {"http_timeouts_total", "", kCounter, TF_VALUE(http_of(s).timeouts_total),
     "Requests that did not arrive in time"},
    {"http_slow_readers_total", "", kCounter, TF_VALUE(http_of(s).slow_readers_total),
     "Connections closed because they did not read"},
};
// clang-format on
#undef TF_VALUE

struct HistogramRow {
  std::string_view name, vllm;
  const Histogram ReplyMetrics::*value;
  std::string_view help;
};
constexpr HistogramRow kHistograms[] = {
    {"time_to_first_token_seconds", "time_to_first_token_seconds", &ReplyMetrics::first_token,
     "From the request's arrival to the first token"},
    {"request_latency_seconds", "e2e_request_latency_seconds", &ReplyMetrics::whole,
     "From the request's arrival to the last byte"},
    {"request_queue_seconds", "request_queue_time_seconds", &ReplyMetrics::queue,
     "Waiting for a slot"},
    {"request_prefill_seconds", "request_prefill_time_seconds", &ReplyMetrics::prefill,
     "From admission to the first token"},
    {"request_decode_seconds", "request_decode_time_seconds", &ReplyMetrics::decode,
     "From the first token to the last"},
    {"time_per_output_token_seconds", "time_per_output_token_seconds", &ReplyMetrics::per_token,
     "Decode time over tokens, of each reply"},
};

void put_histogram(Text& text, const std::string& name, std::string_view help, const Histogram& h) {
  text.family(name, Type::kHistogram, help);
  for (size_t i = 0; i < Histogram::kBoundsSeconds.size(); ++i) {
    std::string bound = std::to_string(Histogram::kBoundsSeconds[i]);
    while (bound.back() == '0') bound.pop_back();
    if (bound.back() == '.') bound += '0';
    text.sample(h.up_to(i), Text::label("le", bound), "_bucket");
  }
  text.sample(h.count(), "le=\"+Inf\"", "_bucket");
  text.sample(h.sum(), {}, "_sum");
  text.sample(h.count(), {}, "_count");
}

}  // namespace

std::vector<std::string> metric_names() {
  std::vector<std::string> out;
  for (const Metric& m : kMetrics) out.push_back("tensorfold_" + std::string(m.name));
  for (const HistogramRow& h : kHistograms) out.push_back("tensorfold_" + std::string(h.name));
  out.push_back("tensorfold_requests_total");
  out.push_back("tensorfold_replies_total");
  return out;
}

void Api::run_metrics(const std::shared_ptr<http::Exchange>& exchange) {
  const EngineStats stats = engine_.stats();
  const Sources sources{stats, replies_, server_};
  const std::string model = Text::label("model_name", options_.chat.served_name);
  Text text;
  for (const Metric& m : kMetrics) {
    const double value = m.value(sources);
    text.family("tensorfold_" + std::string(m.name), m.type, m.help);
    text.sample(value);
    if (m.vllm.empty()) continue;
    text.family("vllm:" + std::string(m.vllm), m.type, m.help);
    text.sample(value, model);
  }
  const ReplyMetrics& replies = replies_.metrics();
  for (const HistogramRow& row : kHistograms) {
    const Histogram& h = replies.*row.value;
    put_histogram(text, "tensorfold_" + std::string(row.name), row.help, h);
    put_histogram(text, "vllm:" + std::string(row.vllm), row.help, h);
  }
  text.family("tensorfold_requests_total", Type::kCounter, "Requests for a reply, by API key");
  for (const auto& [label, count] : replies.requests_by_label) {
    text.sample(count, Text::label("label", label));
  }
  for (const char* name : {"tensorfold_replies_total", "vllm:request_success_total"}) {
    text.family(name, Type::kCounter, "Replies by how they ended");
    for (const auto& [reason, count] : {std::pair<const char*, uint64_t>{"stop", replies.stops},
                                        {"length", replies.lengths},
                                        {"tool_calls", replies.calls},
                                        {"abort", replies.aborts},
                                        {"error", replies.errors}}) {
      text.sample(count, Text::label("finished_reason", reason));
    }
  }
  http::Response response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = std::move(text).take();
  exchange->respond(std::move(response));
}

}  // namespace tensorfold::api
