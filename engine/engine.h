// The engine as the daemon sees it: Engine, Request, events, OutputStream, Stats.
//
// Two nouns and one verb: an Engine is a loaded model with its scheduler; a Request is one reply to
// produce; submit() is the verb. Everything that happens to a request arrives as events on its
// RequestSink. Nothing about tensors, sockets or JSON text leaks through here.
//
// Threads: the daemon may call any method from any thread. Sinks are called from a worker or from
// the engine thread, must not block and must not call back into the Engine.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/clock.h"
#include "engine/base/json.h"
#include "engine/base/log_sink.h"
#include "engine/base/status.h"
#include "engine/cluster_options.h"
#include "engine/grammar/constraint_spec.h"

namespace tensorfold {

using TokenId = int32_t;
using RequestId = uint64_t;

// ---------------------------------------------------------------- the prompt

enum class Role : unsigned char { kSystem, kUser, kAssistant, kTool, kLatestReminder };

struct ToolCall {
  std::string id;
  std::string name;
  Json arguments;  // an object, or a string as the client sent it (the encoder decodes it)
};

struct ContentPart {
  enum class Kind : unsigned char { kText, kImage } kind = Kind::kText;
  std::string text;         // kText
  std::string image_bytes;  // kImage: the encoded file
};

struct ChatMessage {
  Role role = Role::kUser;
  std::vector<ContentPart> content;  // empty when the client sent null or nothing
  bool content_is_list = false;      // the client sent a list: parts are joined by a blank line
  std::optional<std::string> reasoning;
  std::vector<ToolCall> tool_calls;
  std::string tool_call_id;  // kTool
  std::optional<std::string> name;
};

struct ThinkingOptions {
  bool enabled = false;
  int effort = 75;            // 1..100; rendered in the prompt when enabled
  std::optional<int> budget;  // reasoning tokens after which thinking is closed, or none
  bool drop_earlier = true;   // leaves out that of earlier turns, where there are no tools
};

// Text that is the prompt as it stands. With a suffix the reply is what belongs between the two
// (the model's fill-in-the-middle tokens are put around them).
struct RawPrompt {
  std::string text;
  std::optional<std::string> suffix;
  bool add_bos = false;        // the begin token in front (a suffix has its own)
  bool control_tokens = true;  // control tokens written out in the text act as such
};

// A conversation (rendered by the model's prompt encoder), raw text, or ready token ids.
struct Prompt {
  std::vector<ChatMessage> messages;
  std::vector<Json> tools;  // OpenAI function objects, in order
  // The form that the reply must have, as the encoder writes it into the prompt: into the system
  // message that has the tools. Does not constrain anything. None: nothing is written.
  std::optional<Json> response_format;
  ThinkingOptions thinking;
  bool continue_final = false;  // the last message is an assistant's, and the reply goes on with it
  std::optional<RawPrompt> raw;             // when set, nothing above is used
  std::optional<std::vector<TokenId>> ids;  // when set, nothing above is used
};

// Whether the reply begins inside reasoning: a turn to be gone on with is still thinking when it
// holds nothing but reasoning.
inline bool starts_in_reasoning(const Prompt& prompt) {
  if (prompt.ids || prompt.raw || !prompt.thinking.enabled) return false;
  if (!prompt.continue_final || prompt.messages.empty()) return true;
  const ChatMessage& last = prompt.messages.back();
  if (!last.reasoning || last.reasoning->empty() || !last.tool_calls.empty()) return false;
  for (const ContentPart& part : last.content)
    if (!part.text.empty()) return false;
  return true;
}

// ---------------------------------------------------------------- the request

struct SamplingParams {
  double temperature = 1.0;  // 0 is greedy
  double top_p = 0.95;
  int top_k = 0;  // 0 is off
  double min_p = 0.0;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  double repetition_penalty = 1.0;
  std::vector<std::pair<TokenId, float>> logit_bias;
  uint64_t seed = 0;  // noise is keyed by (seed, choice index, position)
  int choice_index = 0;
};

struct Request {
  Prompt prompt;
  SamplingParams sampling;
  std::optional<int> max_tokens;  // reply tokens, reasoning included; none: up to the context
  std::vector<std::string> stop;  // strings that end the content (not inside calls or reasoning)
  bool ignore_eos = false;
  int min_tokens = 0;                   // reply tokens before an end token may come
  bool draft = true;                    // false: the serial reference
  bool background = false;              // yields its slot to others
  int top_logprobs = -1;                // -1 none, 0 the chosen token only, n alternatives
  int prompt_logprobs = -1;             // the same of prompt tokens; such a prompt is not cached
  std::vector<TokenId> allowed_tokens;  // when not empty, no other token is sampled
  bool parallel_tool_calls = true;      // false: the reply ends after the first call
  bool tool_calls_banned = false;       // the token that opens a call is never sampled
  bool loop_guard = false;  // reasoning that goes round in circles is closed, an answer is cut
  std::shared_ptr<const grammar::ConstraintSpec> constraint;  // the reply's form; null: any
  std::string cache_salt;
  std::string label;        // who asked, for logs and metrics
  int64_t deadline_us = 0;  // monotonic; 0 is none
};

// ---------------------------------------------------------------- events

enum class FinishReason : unsigned char { kStop, kLength, kToolCalls, kCancelled, kFailed };

struct TokenLogprob {
  TokenId id;
  float logprob;
  std::vector<std::pair<TokenId, float>> top;
  int rank = 0;  // of a prompt token: 1, the likeliest; 0: the first, which follows nothing
};

struct Usage {
  int prompt_tokens = 0;
  int cached_tokens = 0;
  int completion_tokens = 0;  // reasoning included
  int reasoning_tokens = 0;
};

struct ReplyStats {
  Usage usage;
  uint64_t sampling_seed = 0;
  std::string token_sha;  // first 12 hex digits of SHA-256 over the comma-joined reply ids
  double queue_s = 0, prefill_s = 0, decode_s = 0;
  int rounds = 0, drafted = 0, accepted = 0;
  std::vector<std::string> annotations;  // parts of the asked-for form that do not constrain
  bool loop_closed_thinking = false, loop_ended = false;  // what loop_guard did
};

// The end token that closes a reply is not part of it: it's in no on_tokens, count or token_sha
// (with ignore_eos it's a token like any other). kToolCalls is only known to the engine when it
// parses the reply itself (parallel_tool_calls = false); elsewhere the reader of the tokens turns
// kStop into kToolCalls. on_progress comes between prompt chunks, in place of silence.
// Calls arrive in this order: (on_accepted (on_progress | on_prompt_logprobs | on_tokens)*)? then
// exactly one
// on_finished. A refusal is on_finished alone with a status that is not ok, so the daemon can still
// choose the HTTP status.
class RequestSink {
 public:
  virtual ~RequestSink() = default;
  virtual void on_accepted(RequestId id, int prompt_tokens, int cached_tokens) = 0;
  virtual void on_progress(int prompt_tokens_done, int prompt_tokens_total) = 0;
  // Of Request::prompt_logprobs: the next tokens of the prompt, each once and in order, before any
  // on_tokens.
  virtual void on_prompt_logprobs(std::span<const TokenLogprob> /*tokens*/) {}
  virtual void on_tokens(std::span<const TokenId> ids, std::span<const TokenLogprob> logprobs) = 0;
  virtual void on_finished(const Status& status, FinishReason reason, const ReplyStats& stats) = 0;
};

// ---------------------------------------------------------------- rendering a reply

struct ToolCallDelta {
  int index = 0;
  std::string id;         // set on the first delta of a call
  std::string name;       // set on the first delta of a call
  std::string arguments;  // the next piece; all pieces together are the JSON text
};

struct OutputDelta {
  std::string reasoning;
  std::string content;
  std::vector<ToolCallDelta> tool_calls;
  bool empty() const { return reasoning.empty() && content.empty() && tool_calls.empty(); }
};

struct OutputOptions {
  bool starts_in_reasoning = false;  // the prompt ended with <think>
  bool parse_tool_calls = true;      // false: DSML is left in the content
  std::vector<std::string> stop;     // held back and cut from the content
  uint64_t call_id_seed = 0;         // makes the ids of tool calls
};

// Token ids in, deltas out: incremental UTF-8, reasoning / content / tool calls, stop strings.
// A pure function of the ids: any way of cutting them into feeds gives the same concatenation.
class OutputStream {
 public:
  virtual ~OutputStream() = default;
  virtual OutputDelta feed(std::span<const TokenId> ids) = 0;
  virtual OutputDelta finish() = 0;              // flushes what was held back
  virtual bool stopped() const = 0;              // a stop string was seen; later ids give nothing
  virtual int stop_index() const { return -1; }  // which of OutputOptions::stop; -1: none
  virtual int reasoning_tokens() const = 0;
  virtual int tool_calls() const = 0;  // calls begun so far
  virtual int tool_calls_closed() const = 0;
};

// ---------------------------------------------------------------- the engine

struct EngineOptions {
  std::string model_path;           // a model folder
  std::string engram_path;          // empty: in the model folder
  std::string prepared_path;        // empty: none
  std::string device = "auto";      // "auto", "cpu", "cuda"
  int slots = 4;                    // sequences in the batch, 1..64
  int64_t context = 0;              // tokens; 0 is the model's own maximum
  int prefill_rows = 2048;          // 256..8192
  int draft_depth = 5;              // most drafts per sequence and step, 0..5; 0: none
  bool draft_full = false;          // verify every draft, whatever it costs (to measure)
  bool exact_prefill = true;        // false: bounded replay
  int64_t pool_tokens = 0;          // cache pool; 0 is slots x context, bounded by memory
  int64_t snapshot_mib = 256;       // memory for snapshots of the prefix cache; 0: no prefix cache
  bool reuse_replies = true;        // generated rows are kept for the next turn
  int64_t spill_gib = 0;            // the prefix cache on disk; 0: none
  std::string spill_dir;            // its folder; empty: "spill" in state_dir
  int64_t spill_free_mib = 10'240;  // of the disk, left to others
  int queue_requests = 64;          // waiting requests before 429
  int64_t queue_deadline_us = 30'000'000;
  bool allow_control_tokens = false;
  int threads = 0;  // CPU engine; 0 is the number of cores
  // What outlives a restart: measured costs, spilled blocks. Empty: nothing is kept.
  std::string state_dir;
  ClusterOptions cluster;
};

// The prefix cache on disk; all zero: there is none.
struct SpillFigures {
  enum class State : unsigned char { kOff, kReadingIndex, kOn, kPaused } state = State::kOff;
  int64_t files = 0, records = 0, bytes = 0, bytes_max = 0;
  int64_t written_bytes_total = 0, read_bytes_total = 0, read_us_total = 0;
  int64_t restored_total = 0;         // prompts that began with what was read
  int64_t restored_tokens_total = 0;  // that they had not to compute
  int64_t damaged_total = 0;          // files dropped
  int64_t proved_total = 0;           // restored prefixes of which rows were computed anew: equal
  int64_t untrue_total = 0;           // and not equal: dropped, the prompt was computed
  int64_t errors_total = 0;           // operations that the disk refused
  int64_t missed_total = 0;           // records that were wanted and could not be had
  int64_t not_taken_total = 0;        // offered while there was no room or writing was off
  int64_t times_off_total = 0;
};

struct EngineStats {
  // kWaiting: loaded, but other ranks of the model are missing or leave; of a worker: its head.
  enum class State : unsigned char { kLoading, kReady, kDraining, kFailed, kStopped, kWaiting };
  State state = State::kLoading;
  std::string state_detail;              // "loading: 61 of 183 tensors"
  StatusCode failure = StatusCode::kOk;  // of a load that failed
  int slots_total = 0, slots_busy = 0, prefilling = 0, waiting = 0;
  int64_t context = 0;
  int64_t pool_tokens_total = 0, pool_tokens_used = 0;
  int64_t weight_bytes = 0, cache_bytes = 0;
  // The prefix cache: pool tokens that only it holds (given up when a request needs them), whole
  // blocks that can be shared, snapshots. cached_tokens_total is what hits saved.
  int64_t pool_tokens_cached = 0, cache_blocks = 0;
  int64_t cache_snapshots = 0, cache_snapshot_bytes = 0, cache_snapshot_bytes_max = 0;
  uint64_t cache_lookups_total = 0, cache_hits_total = 0;
  uint64_t cache_kept_total = 0, cache_evicted_total = 0;  // snapshots taken, and dropped for room
  uint64_t cache_flushes_total = 0;
  SpillFigures spill;
  uint64_t preemptions_total = 0;  // background sequences set aside for foreground ones
  uint64_t requests_total = 0, prompt_tokens_total = 0, cached_tokens_total = 0;
  uint64_t completion_tokens_total = 0, rounds_total = 0, drafted_total = 0, accepted_total = 0;
  uint64_t draft_pauses_total = 0;  // times that drafting stopped paying for a sequence
  // Among drafted and accepted: tokens that a reply's form left no choice about.
  uint64_t forced_drafted_total = 0, forced_accepted_total = 0;
  uint64_t masks_put_off_total = 0;  // made beside the steps: they took more work than a step has
  uint64_t loops_closed_total = 0;   // replies whose reasoning went round in circles and was closed
  uint64_t loops_ended_total = 0;    // replies that did so outside of reasoning and were cut
  int drafts_paused = 0;             // running sequences for which it is off now
  // A fixed prompt that is asked now and then, and what its answers led to (docs/operations.md).
  uint64_t canaries_total = 0, canaries_wrong_total = 0;
  uint64_t health_alarms_total = 0, new_starts_total = 0;  // the model was loaded again
  bool health_alarm = false;                               // nothing is drafted
  uint64_t steps_total = 0;  // moves while the engine makes progress (watchdog)
  double prefill_seconds_total = 0, decode_seconds_total = 0;
  double decode_tokens_per_second = 0;  // over the last seconds
  double prefill_tokens_per_second = 0;
  ClusterStats cluster;
};

struct ModelInfo {
  std::string fingerprint;
  std::string architecture;
  int64_t max_context = 0;
  int64_t parameters = 0;
  int vocab_size = 0;
};

class Engine {
 public:
  // Returns at once; loading goes on in the engine thread and shows in stats(). A failed load is
  // state kFailed with the reason in state_detail.
  static Result<std::unique_ptr<Engine>> create(EngineOptions options, const Clock& clock,
                                                LogSink& log);
  virtual ~Engine() = default;  // stops and joins

  // kTooMany when the queue is full, kUnavailable while loading, draining or failed.
  virtual Result<RequestId> submit(Request request, std::shared_ptr<RequestSink> sink) = 0;
  // Takes effect at the next step boundary; on_finished(kCancelled) follows. Unknown ids: no-op.
  virtual void cancel(RequestId id) = 0;
  virtual void drain() = 0;   // refuse new requests, finish the others
  virtual void resume() = 0;  // undo drain()
  // The prefix cache forgets everything; running requests go on. `spill`: what is on disk too. Done
  // at the next step boundary, when cache_flushes_total moves.
  virtual void flush_cache(bool spill) = 0;

  virtual EngineStats stats() const = 0;
  virtual ModelInfo model() const = 0;  // only after loading
  virtual std::unique_ptr<OutputStream> output_stream(const OutputOptions& options) const = 0;
  virtual std::string token_text(TokenId id) const = 0;  // raw bytes, for logprobs
  // What submit() would compute of a prompt. Takes as long as its text: call it from a worker.
  // kUnavailable before the model is loaded.
  virtual Result<std::vector<TokenId>> encode(const Prompt& prompt) const = 0;
};

}  // namespace tensorfold
