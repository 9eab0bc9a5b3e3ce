// Workers that prepare requests. Threads: see the header.
#include "engine/submit_pipeline.h"

#include <cmath>
#include <exception>

#include "engine/base/check.h"
#include "engine/min_tokens.h"
#include "engine/sched/step_plan.h"

namespace tensorfold {
namespace {

// Workers wake at least this often to see a shutdown.
constexpr int64_t kWorkerWaitUs = 200'000;

// A bias under which no token is ever sampled beside any other: finite, as the step plan asks, and
// far outside of what logits, a client's bias and penalties add up to.
constexpr float kBannedBias = -1e30F;

Status in_range(double value, double low, double high, const char* param) {
  if (std::isfinite(value) && value >= low && value <= high) return ok_status();
  return invalid_argument(std::string(param) + " must be a number from " + std::to_string(low) +
                              " to " + std::to_string(high),
                          param);
}

Status check_sampling(const SamplingParams& s, int vocab) {
  constexpr double kTemperatureMax = 100;
  constexpr double kPenaltyMax = 100;
  TF_RETURN_IF_ERROR(in_range(s.temperature, 0, kTemperatureMax, "temperature"));
  TF_RETURN_IF_ERROR(in_range(s.top_p, 0, 1, "top_p"));
  TF_RETURN_IF_ERROR(in_range(s.min_p, 0, 1, "min_p"));
  TF_RETURN_IF_ERROR(in_range(s.presence_penalty, -kPenaltyMax, kPenaltyMax, "presence_penalty"));
  TF_RETURN_IF_ERROR(in_range(s.frequency_penalty, -kPenaltyMax, kPenaltyMax, "frequency_penalty"));
  TF_RETURN_IF_ERROR(in_range(s.repetition_penalty, 1e-3, kPenaltyMax, "repetition_penalty"));
  if (s.top_k < 0) return invalid_argument("top_k must not be negative", "top_k");
  if (s.choice_index < 0) return invalid_argument("the choice index must not be negative", "n");
  constexpr int kClientMax = kLogitBiasMax - 1;  // one is kept for a ban of calls
  if (s.logit_bias.size() > static_cast<size_t>(kClientMax))
    return invalid_argument("logit_bias has more than " + std::to_string(kClientMax) + " entries",
                            "logit_bias");
  for (const auto& [token, bias] : s.logit_bias) {
    if (token < 0 || token >= vocab || !std::isfinite(bias))
      return invalid_argument("logit_bias: " + std::to_string(token) +
                                  " is not a token of this model, or its bias is not a number",
                              "logit_bias");
  }
  return ok_status();
}

}  // namespace

// ---------------------------------------------------------------- tickets

void Ticket::finish(const Status& status, FinishReason reason, const ReplyStats& stats) {
  TF_CHECK_MSG(!finished_.exchange(true), "a request ended twice");
  // Out of the book first: a sink that is told of the end may see a slot free at once.
  book_.close(id_);
  sink_->on_finished(status, reason, stats);
}

std::shared_ptr<Ticket> TicketBook::open(std::shared_ptr<RequestSink> sink, size_t most) {
  std::lock_guard lock(mutex_);
  if (tickets_.size() >= most) return nullptr;
  auto ticket = std::make_shared<Ticket>(next_, std::move(sink), *this);
  tickets_.emplace(next_++, ticket);
  return ticket;
}

void TicketBook::cancel(RequestId id) {
  std::lock_guard lock(mutex_);
  const auto it = tickets_.find(id);
  if (it != tickets_.end()) it->second->cancel();
}

void TicketBook::close(RequestId id) {
  std::lock_guard lock(mutex_);
  tickets_.erase(id);
}

size_t TicketBook::size() const {
  std::lock_guard lock(mutex_);
  return tickets_.size();
}

// ---------------------------------------------------------------- checks

Status check_request(const Request& request, int vocab) {
  TF_RETURN_IF_ERROR(check_sampling(request.sampling, vocab));
  if (request.max_tokens && *request.max_tokens < 0)
    return invalid_argument("max_tokens must not be negative", "max_tokens");
  if (request.min_tokens < 0 || request.min_tokens > kMinTokensMax ||
      (request.max_tokens && request.min_tokens > *request.max_tokens))
    return invalid_argument("min_tokens must be 0 up to max_tokens", "min_tokens");
  if (request.stop.size() > static_cast<size_t>(kStopStringsMax))
    return invalid_argument("stop has more than " + std::to_string(kStopStringsMax) + " strings",
                            "stop");
  for (const std::string& s : request.stop) {
    if (s.empty() || s.size() > kStopStringMaxBytes)
      return invalid_argument(
          "a stop string must have 1 to " + std::to_string(kStopStringMaxBytes) + " bytes", "stop");
  }
  if (request.top_logprobs < -1 || request.top_logprobs > kTopLogprobsMax)
    return invalid_argument("top_logprobs must be at most " + std::to_string(kTopLogprobsMax),
                            "top_logprobs");
  if (request.prompt_logprobs < -1 || request.prompt_logprobs > kTopLogprobsMax)
    return invalid_argument("prompt_logprobs must be at most " + std::to_string(kTopLogprobsMax),
                            "prompt_logprobs");
  const auto& budget = request.prompt.thinking.budget;
  if (budget && *budget < 0)
    return invalid_argument("the thinking budget must not be negative", "thinking_budget");
  if (request.allowed_tokens.size() > kAllowedTokensMax)
    return invalid_argument("too many allowed tokens", "allowed_token_ids");
  if (request.constraint && !request.allowed_tokens.empty())
    return invalid_argument("allowed tokens and a form of the reply exclude each other",
                            "allowed_token_ids");
  if (request.constraint && request.ignore_eos)
    return invalid_argument("ignore_eos: a reply of a given form ends where the form does",
                            "ignore_eos");
  for (const TokenId id : request.allowed_tokens) {
    if (id < 0 || id >= vocab)
      return invalid_argument(std::to_string(id) + " is not a token of this model",
                              "allowed_token_ids");
  }
  return ok_status();
}

Status reason_to_stop(const Ticket& ticket, const Request& request, int64_t now_us) {
  if (ticket.cancelled()) return Status(StatusCode::kCancelled, "the request was cancelled");
  if (request.deadline_us > 0 && now_us >= request.deadline_us)
    return Status(StatusCode::kDeadline, "the request's deadline passed");
  return ok_status();
}

// ---------------------------------------------------------------- workers

SubmitPipeline::SubmitPipeline(std::shared_ptr<const TextCodec> text, int vocab,
                               const Capacity& capacity, const Clock& clock, size_t queue_items,
                               Deliver deliver, std::shared_ptr<ConstraintService> constraints)
    : text_(std::move(text)),
      vocab_(vocab),
      capacity_(capacity),
      clock_(clock),
      deliver_(std::move(deliver)),
      constraints_(std::move(constraints)),
      queue_(queue_items) {
  for (int i = 0; i < kPromptWorkers; ++i) workers_.emplace_back([this] { work(); });
}

SubmitPipeline::~SubmitPipeline() {
  stopping_.store(true, std::memory_order_release);
  queue_.close();
  for (std::thread& t : workers_) t.join();
}

bool SubmitPipeline::push(Submission&& submission) {
  return queue_.try_push(std::move(submission));
}

void SubmitPipeline::work() {
  for (;;) {
    auto submission = queue_.pop_wait(kWorkerWaitUs);
    if (submission) {
      prepare(std::move(*submission));
    } else if (queue_.closed()) {
      return;
    }
  }
}

void SubmitPipeline::prepare(Submission submission) {
  const std::shared_ptr<Ticket> ticket = submission.ticket;
  Status status = fill_in(submission);
  if (status.ok() && deliver_(std::move(submission))) return;
  if (status.ok()) status = unavailable("the server is stopping", "stopping");
  const bool cancelled = status.code() == StatusCode::kCancelled;
  ticket->finish(status, cancelled ? FinishReason::kCancelled : FinishReason::kFailed, {});
}

// What a prompt's log-probabilities may come to.
static Status check_scores(size_t tokens, int alternatives) {
  if (alternatives < 0) return ok_status();
  const size_t most = kPromptScoresMax / (1 + static_cast<size_t>(alternatives));
  if (tokens <= most) return ok_status();
  return invalid_argument("prompt_logprobs: the prompt has " + std::to_string(tokens) +
                              " tokens; with so many alternatives it may have " +
                              std::to_string(most),
                          "prompt_logprobs");
}

Status SubmitPipeline::fill_in(Submission& submission) const {
  const Request& request = submission.request;
  if (stopping_.load(std::memory_order_acquire))
    return unavailable("the server is stopping", "stopping");
  TF_RETURN_IF_ERROR(reason_to_stop(*submission.ticket, request, clock_.monotonic_us()));
  try {
    TF_RETURN_IF_ERROR(check_request(request, vocab_));
    TF_ASSIGN_OR_RETURN(submission.prompt, text_->encode(request.prompt));
    for (const TokenId id : submission.prompt.ids) {
      if (id < 0 || id >= vocab_)
        return invalid_argument(
            "the prompt holds " + std::to_string(id) + ", which is not a token of this model",
            "prompt");
    }
    TF_RETURN_IF_ERROR(check_scores(submission.prompt.ids.size(), request.prompt_logprobs));
    TF_ASSIGN_OR_RETURN(
        submission.price,
        price_request(capacity_, static_cast<int64_t>(submission.prompt.ids.size()),
                      request.max_tokens, request.prompt.ids || request.prompt.raw));
    if (request.tool_calls_banned && text_->call_token() >= 0)
      submission.request.sampling.logit_bias.emplace_back(text_->call_token(), kBannedBias);
    if (!request.allowed_tokens.empty())
      submission.mask = make_allow_list(vocab_, request.allowed_tokens);
    if (request.constraint) TF_RETURN_IF_ERROR(constrain(submission));
    if (request.min_tokens > 0 && !request.ignore_eos)
      submission.mask =
          make_min_tokens(vocab_, *text_, request.min_tokens, std::move(submission.mask));
  } catch (const std::exception& e) {
    return internal_error(std::string("preparing the prompt failed: ") + e.what());
  }
  return ok_status();
}

Status SubmitPipeline::constrain(Submission& submission) const {
  const grammar::ConstraintSpec& spec = *submission.request.constraint;
  if (!constraints_) return unsupported("this engine has no constrained decoding");
  TF_ASSIGN_OR_RETURN(Constraint made,
                      constraints_->compile(spec, submission.prompt.starts_in_reasoning));
  submission.mask = std::move(made.source);
  submission.annotations = std::move(made.ignored);
  return ok_status();
}

}  // namespace tensorfold
