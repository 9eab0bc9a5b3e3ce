#include "tests/daemon/fake_engine.h"

#include <openssl/sha.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "engine/base/check.h"
#include "tests/daemon/fake_output.h"

namespace tensorfold {

// What the last message asks for; everything that is not known is answered with a greeting.
//   echo TEXT         TEXT            count N           "1 2 ... N"
//   slow MS N         N letters, one each MS milliseconds
//   burst N           N letters in one go, faster than a slow reader reads
//   hang              accepted, then nothing until it is cancelled
//   queue MS          accepted after MS
//   silent MS TEXT    accepted, first token after MS
//   fail              three letters, then a failure
//   refuse            a prompt that is too long
//   call NAME JSON    a tool call     emoji             characters cut between tokens
//   think TEXT        reasoning (if thinking is on), then TEXT
//   stall             three letters, then nothing and no step until it is cancelled
//   chain             reasoning (if thinking is on), content and two calls
//   choice            the choice's index and the seed
//   params            the request's parameters as text
struct FakeEngine::Script {
  std::vector<TokenId> ids;
  Status refusal;
  int queue_ms = 0, first_ms = 0, each_ms = 0;
  int fail_after = -1;
  bool hang = false;
  size_t per_step = 3;  // tokens of one on_tokens, as accepted drafts give
};

struct FakeEngine::Job {
  RequestId id = 0;
  Request request;
  std::shared_ptr<RequestSink> sink;
  std::atomic<bool> cancelled{false};
  std::atomic<bool> done{false};
  std::thread thread;
};

namespace {

std::string last_text(const Request& request) {
  std::string out;
  if (request.prompt.raw) return request.prompt.raw->text;
  if (request.prompt.ids) {
    for (const TokenId id : *request.prompt.ids) out += static_cast<char>(id);
    return out;
  }
  if (request.prompt.messages.empty()) return out;
  for (const ContentPart& part : request.prompt.messages.back().content) out += part.text;
  return out;
}

void append(std::vector<TokenId>& ids, std::string_view text) {
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
}

std::string params_text(const Request& r) {
  std::ostringstream out;
  const SamplingParams& s = r.sampling;
  out << "temperature=" << s.temperature << " top_p=" << s.top_p << " top_k=" << s.top_k
      << " min_p=" << s.min_p << " presence=" << s.presence_penalty
      << " frequency=" << s.frequency_penalty << " repetition=" << s.repetition_penalty
      << " max=" << r.max_tokens.value_or(-1) << " stop=" << r.stop.size() << " draft=" << r.draft
      << " background=" << r.background << " ignore_eos=" << r.ignore_eos
      << " top_logprobs=" << r.top_logprobs << " tools=" << r.prompt.tools.size()
      << " thinking=" << r.prompt.thinking.enabled << " effort=" << r.prompt.thinking.effort
      << " parallel=" << r.parallel_tool_calls << " label=" << r.label;
  if (r.min_tokens > 0) out << " min=" << r.min_tokens;
  if (!r.cache_salt.empty()) out << " salt=" << r.cache_salt;
  if (!r.sampling.logit_bias.empty()) out << " bias=" << r.sampling.logit_bias.size();
  if (!r.allowed_tokens.empty()) out << " allowed=" << r.allowed_tokens.size();
  if (r.prompt.continue_final) out << " continues";
  if (r.prompt.raw && r.prompt.raw->suffix) out << " suffix=" << *r.prompt.raw->suffix;
  if (r.prompt.raw && r.prompt.raw->add_bos) out << " bos";
  return out.str();
}

// A conversation is its texts, each with two marks, and four marks around them.
std::vector<TokenId> prompt_ids(const Prompt& prompt) {
  if (prompt.ids) return *prompt.ids;
  std::vector<TokenId> out;
  if (prompt.raw) {
    append(out, prompt.raw->text + prompt.raw->suffix.value_or(""));
    return out;
  }
  out.assign(4, kFakeEnd);
  for (const ChatMessage& message : prompt.messages) {
    for (const ContentPart& part : message.content) {
      append(out, part.text);
      out.insert(out.end(), 2, kFakeEnd);
    }
  }
  return out;
}

std::string sha_of(const std::vector<TokenId>& ids) {
  std::string text;
  for (const TokenId id : ids) text += (text.empty() ? "" : ",") + std::to_string(id);
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
  std::string out;
  for (int i = 0; i < 6; ++i) {
    char hex[3];
    std::snprintf(hex, sizeof hex, "%02x", digest[i]);
    out += hex;
  }
  return out;
}

int number_of(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? 0 : std::atoi(value);
}

}  // namespace

FakeSettings fake_settings_from_environment() {
  FakeSettings out;
  out.load_ms = number_of("TF_FAKE_LOAD_MS");
  out.fail_load = static_cast<StatusCode>(number_of("TF_FAKE_FAIL_LOAD"));
  out.stuck = number_of("TF_FAKE_STUCK") != 0;
  return out;
}

FakeEngine::FakeEngine(EngineOptions options, FakeSettings settings, const Clock& clock)
    : options_(std::move(options)),
      settings_(settings),
      clock_(clock),
      started_us_(clock.monotonic_us()) {}

FakeEngine::~FakeEngine() {
  std::vector<std::thread> threads;
  {
    std::lock_guard lock(mutex_);
    for (auto& [id, job] : jobs_) {
      job->cancelled = true;
      threads.push_back(std::move(job->thread));
    }
  }
  changed_.notify_all();
  for (std::thread& thread : threads) thread.join();
}

EngineStats::State FakeEngine::state() const {
  const int64_t age_us = clock_.monotonic_us() - started_us_;
  if (age_us < int64_t{1000} * settings_.load_ms) return EngineStats::State::kLoading;
  if (settings_.fail_load != StatusCode::kOk) return EngineStats::State::kFailed;
  return draining_ ? EngineStats::State::kDraining : EngineStats::State::kReady;
}

Result<RequestId> FakeEngine::submit(Request request, std::shared_ptr<RequestSink> sink) {
  std::lock_guard lock(mutex_);
  if (state() == EngineStats::State::kLoading) return unavailable("the model is loading");
  if (state() != EngineStats::State::kReady) return unavailable("the server is draining");
  for (auto it = jobs_.begin(); it != jobs_.end();) {
    if (it->second->done) {
      it->second->thread.join();
      it = jobs_.erase(it);
    } else {
      ++it;
    }
  }
  if (busy_ + waiting_ >= options_.slots + options_.queue_requests) {
    return Status(StatusCode::kTooMany, "too many requests are waiting");
  }
  auto job = std::make_unique<Job>();
  job->id = next_id_++;
  job->request = std::move(request);
  job->sink = std::move(sink);
  ++waiting_;
  Job* raw = job.get();
  jobs_.emplace(job->id, std::move(job));
  raw->thread = std::thread([this, raw] { run(*raw); });
  return raw->id;
}

void FakeEngine::cancel(RequestId id) {
  if (settings_.stuck) return;
  std::lock_guard lock(mutex_);
  if (auto it = jobs_.find(id); it != jobs_.end()) it->second->cancelled = true;
  changed_.notify_all();
}

void FakeEngine::drain() {
  std::lock_guard lock(mutex_);
  draining_ = true;
}

void FakeEngine::resume() {
  std::lock_guard lock(mutex_);
  draining_ = false;
}

void FakeEngine::flush_cache(bool) {
  std::lock_guard lock(mutex_);
  ++totals_.cache_flushes_total;
}

bool FakeEngine::pause_ms(Job& job, int ms) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::milliseconds(ms), [&] { return job.cancelled.load(); });
  return !job.cancelled;
}

bool FakeEngine::wait_slot(Job& job) {
  std::unique_lock lock(mutex_);
  const auto limit = std::chrono::microseconds(options_.queue_deadline_us);
  const bool got = changed_.wait_for(
      lock, limit, [&] { return job.cancelled.load() || busy_ < options_.slots; });
  --waiting_;
  if (!got || job.cancelled) return false;
  ++busy_;
  return true;
}

FakeEngine::Script FakeEngine::script_of(const Request& request) {
  Script script;
  std::istringstream words(last_text(request));
  std::string verb, rest;
  words >> verb;
  if (verb == "echo" || verb == "think" || verb == "emoji") {
    std::getline(words >> std::ws, rest);
    if (starts_in_reasoning(request.prompt)) {
      append(script.ids, "hmm");
      script.ids.push_back(kFakeThinkEnd);
    }
    append(script.ids, verb == "emoji" ? "a\xF0\x9F\x98\x80z\xC3\xA9" : rest);
    if (verb == "emoji") script.per_step = 1;
  } else if (verb == "count") {
    int n = 0;
    words >> n;
    for (int i = 1; i <= n; ++i) append(script.ids, (i > 1 ? " " : "") + std::to_string(i));
  } else if (verb == "slow" || verb == "burst") {
    int n = 0;
    if (verb == "slow") words >> script.each_ms;
    words >> n;
    for (int i = 0; i < n; ++i) script.ids.push_back('a' + i % 26);
    script.per_step = verb == "slow" ? 1 : 64;
  } else if (verb == "hang" || verb == "stall") {
    script.hang = true;
    if (verb == "stall") append(script.ids, "abc");
  } else if (verb == "choice") {
    append(script.ids, std::to_string(request.sampling.choice_index) + " of " +
                           std::to_string(request.sampling.seed));
  } else if (verb == "chain") {  // reasoning, content and two calls
    if (starts_in_reasoning(request.prompt)) {
      append(script.ids, "hmm");
      script.ids.push_back(kFakeThinkEnd);
    }
    append(script.ids, "text");
    for (const std::string_view call : {"first", "second"}) {
      script.ids.push_back(kFakeCallBegin);
      append(script.ids, call);
      script.ids.push_back(kFakeCallArguments);
      append(script.ids, "{\"n\": 1}");
      script.ids.push_back(kFakeCallEnd);
    }
  } else if (verb == "queue") {
    words >> script.queue_ms;
    append(script.ids, "late");
  } else if (verb == "silent") {
    words >> script.first_ms;
    append(script.ids, "at last");
  } else if (verb == "fail") {
    append(script.ids, "abc");
    script.fail_after = 3;
  } else if (verb == "refuse") {
    script.refusal = invalid_argument("This server's maximum context length is 4096 tokens",
                                      "messages", "context_length_exceeded");
  } else if (verb == "call") {
    std::string name;
    words >> name;
    std::getline(words >> std::ws, rest);
    script.ids.push_back(kFakeCallBegin);
    append(script.ids, name);
    script.ids.push_back(kFakeCallArguments);
    append(script.ids, rest);
    script.ids.push_back(kFakeCallEnd);
  } else {
    append(script.ids, verb == "params" ? params_text(request) : "Hello from the script.");
  }
  return script;
}

void FakeEngine::run(Job& job) {
  if (!wait_slot(job)) {
    const Status status = job.cancelled ? ok_status() : unavailable("no slot became free in time");
    job.sink->on_finished(status, FinishReason::kCancelled, ReplyStats());
    job.done = true;
    return;
  }
  play(job, script_of(job.request));
  {
    std::lock_guard lock(mutex_);
    --busy_;
  }
  changed_.notify_all();
  job.done = true;
}

// A prefill that takes so long: steps and progress as a real one has them.
bool FakeEngine::fill(Job& job, int ms, int prompt_tokens) {
  constexpr int kStepMs = 10;
  bool alive = true;
  for (int done_ms = kStepMs; done_ms <= ms && alive; done_ms += kStepMs) {
    alive = pause_ms(job, kStepMs);
    ++waited_;
    const int done = static_cast<int>(int64_t{prompt_tokens} * done_ms / ms);
    if (alive) job.sink->on_progress(done, prompt_tokens);
  }
  return alive;
}

namespace {

// Log-probabilities of the prompt in pieces of three: -0.5 each, the second likeliest after "A".
void score_prompt(const Request& request, RequestSink& sink) {
  constexpr size_t kPiece = 3;
  const std::vector<TokenId> ids = prompt_ids(request.prompt);
  std::vector<TokenLogprob> piece;
  for (size_t i = 0; i < ids.size(); ++i) {
    TokenLogprob one{ids[i], i == 0 ? 0.0f : -0.5f, {}, i == 0 ? 0 : 2};
    if (i > 0 && request.prompt_logprobs > 0) one.top.emplace_back('A', -0.25f);
    if (i > 0 && request.prompt_logprobs > 1) one.top.emplace_back(ids[i], -0.5f);
    piece.push_back(std::move(one));
    if (piece.size() < kPiece && i + 1 < ids.size()) continue;
    sink.on_prompt_logprobs(piece);
    piece.clear();
  }
}

}  // namespace

void FakeEngine::play(Job& job, const Script& script) {
  ReplyStats stats;
  stats.usage.prompt_tokens = static_cast<int>(prompt_ids(job.request.prompt).size());
  stats.usage.cached_tokens = std::min(4, stats.usage.prompt_tokens);
  stats.sampling_seed = job.request.sampling.seed;
  RequestSink& sink = *job.sink;
  if (!script.refusal.ok()) {
    sink.on_finished(script.refusal, FinishReason::kFailed, stats);
    return;
  }
  const bool started = script.queue_ms == 0 || pause_ms(job, script.queue_ms);
  if (started) sink.on_accepted(job.id, stats.usage.prompt_tokens, stats.usage.cached_tokens);
  OutputOptions options;
  options.starts_in_reasoning = starts_in_reasoning(job.request.prompt);
  options.stop = job.request.stop;
  const auto parser = make_fake_output(options);
  std::vector<TokenId> ids = script.ids;
  ids.push_back(kFakeEnd);
  FinishReason reason = FinishReason::kStop;
  const size_t most = static_cast<size_t>(job.request.max_tokens.value_or(1 << 30));
  std::vector<TokenId> sent;
  bool alive = started && fill(job, script.first_ms, stats.usage.prompt_tokens);
  if (alive && job.request.prompt_logprobs >= 0) score_prompt(job.request, sink);
  while (script.hang && script.ids.empty() && alive) alive = pause_ms(job, 1000);
  while (alive && sent.size() < ids.size() && !parser->stopped()) {
    if (sent.size() == most) {
      reason = FinishReason::kLength;
      break;
    }
    const size_t n = std::min({script.per_step, ids.size() - sent.size(), most - sent.size()});
    const std::span<const TokenId> step(ids.data() + sent.size(), n);
    parser->feed(step);
    std::vector<TokenLogprob> logprobs;
    for (const TokenId id : step) {
      if (job.request.top_logprobs >= 0) logprobs.push_back({id, -0.5f, {{id, -0.5f}}});
    }
    sink.on_tokens(step, logprobs);
    sent.insert(sent.end(), step.begin(), step.end());
    ++waited_;
    alive = !job.cancelled && (script.each_ms == 0 || pause_ms(job, script.each_ms));
    while (script.hang && alive) alive = pause_ms(job, 1000);
  }
  stats.usage.completion_tokens = static_cast<int>(sent.size());
  stats.usage.reasoning_tokens = parser->reasoning_tokens();
  stats.token_sha = sha_of(sent);
  stats.rounds = static_cast<int>(sent.size());
  if (parser->tool_calls() > 0) reason = FinishReason::kToolCalls;
  if (!alive) reason = FinishReason::kCancelled;
  {
    std::lock_guard lock(mutex_);
    ++totals_.requests_total;
    totals_.prompt_tokens_total += static_cast<uint64_t>(stats.usage.prompt_tokens);
    totals_.completion_tokens_total += sent.size();
  }
  const bool failed = script.fail_after >= 0 && alive;
  sink.on_finished(failed ? internal_error("scripted failure") : ok_status(),
                   failed ? FinishReason::kFailed : reason, stats);
}

EngineStats FakeEngine::stats() const {
  std::lock_guard lock(mutex_);
  EngineStats out = totals_;
  out.steps_total += waited_;
  out.state = state();
  if (out.state == EngineStats::State::kLoading) out.state_detail = "1 of 2 tensors";
  if (out.state == EngineStats::State::kFailed) out.state_detail = "scripted load failure";
  out.failure = settings_.fail_load;
  out.slots_total = options_.slots;
  out.slots_busy = busy_;
  out.waiting = waiting_;
  out.context = options_.context > 0 ? options_.context : kFakeContext;
  out.pool_tokens_total = kFakeContext * options_.slots;
  return out;
}

ModelInfo FakeEngine::model() const {
  return {"fake0123456789abcdef", "Scripted", kFakeContext, 0, 261};
}

std::unique_ptr<OutputStream> FakeEngine::output_stream(const OutputOptions& options) const {
  return make_fake_output(options);
}

std::string FakeEngine::token_text(TokenId id) const {
  return id < 256 ? std::string(1, static_cast<char>(id)) : std::string();
}

Result<std::vector<TokenId>> FakeEngine::encode(const Prompt& prompt) const {
  return prompt_ids(prompt);
}

}  // namespace tensorfold
