#include "ctl/bench/completion.h"

#include <tuple>
#include <utility>

#include "ctl/bench/event_stream.h"

namespace tensorfold::ctl::bench {
namespace {

constexpr size_t kQuotedBytes = 200;  // of a server's words in a message

std::string quoted(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, kQuotedBytes)) {
    out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return out + (text.size() > kQuotedBytes ? "..." : "");
}

std::string error_message(const Json& document) {
  const Json* error = document.find("error");
  const Json* message = error != nullptr ? error->find("message") : document.find("message");
  if (message != nullptr && message->is_string()) return quoted(message->as_string());
  if (error != nullptr && error->is_string()) return quoted(error->as_string());
  return quoted(dump_json_compact(document));
}

Status refused(const HttpRequest& request, const HttpReply& reply) {
  const auto document = parse_json(reply.body);
  return Status(StatusCode::kUnavailable,
                request.method + " " + request.path + " was answered " +
                    std::to_string(reply.status) + ": " +
                    (document.ok() ? error_message(*document) : quoted(reply.body)),
                {}, "http_" + std::to_string(reply.status));
}

std::string body_of(const Target& target, const Ask& ask) {
  Json body = Json::object({{"model", Json::string(target.model)}});
  if (ask.token_ids.empty()) {
    body.set("messages", Json::array({Json::object({{"role", Json::string("user")},
                                                    {"content", Json::string(ask.text)}})}));
    if (!target.plain) {
      body.set("chat_template_kwargs", Json::object({{"enable_thinking", Json::boolean(false)}}));
    }
  } else {
    Json::Array ids;
    ids.reserve(ask.token_ids.size());
    for (const int64_t id : ask.token_ids) ids.push_back(Json::integer(id));
    body.set("prompt", Json::array(std::move(ids)));
  }
  body.set("max_tokens", Json::integer(ask.max_tokens));
  body.set("temperature", Json::integer(0));
  if (ask.ignore_eos) body.set("ignore_eos", Json::boolean(true));
  body.set("stream", Json::boolean(true));
  body.set("stream_options", Json::object({{"include_usage", Json::boolean(true)}}));
  return dump_json_compact(body);
}

std::optional<int64_t> count_in(const Json* object, std::string_view key) {
  const Json* value = object != nullptr ? object->find(key) : nullptr;
  return value != nullptr && value->is_int() ? value->as_int64() : std::nullopt;
}

// Events of one reply -> Sample.
class Reader {
 public:
  explicit Reader(const std::function<void()>& on_first_text) : on_first_text_(on_first_text) {}

  Status take(int64_t at_us, std::string_view bytes) {
    return stream_.feed(bytes, [&](std::string_view data) { return event(at_us, data); });
  }

  Result<Sample> finish(const HttpReply& reply) {
    sample_.sent_us = reply.sent_us;
    sample_.end_us = reply.end_us;
    if (!done_) return data_loss("the stream ended without [DONE], after " + events_text());
    if (!has_usage_) {
      return data_loss("the server sent no usage in " + events_text() +
                       "; figures need stream_options.include_usage");
    }
    if (sample_.text_us.empty() && sample_.finish_reason.empty()) {
      return data_loss("neither text nor a finish reason in " + events_text());
    }
    return std::move(sample_);
  }

 private:
  std::string events_text() const { return std::to_string(events_) + " events"; }

  Status malformed(const std::string& what, std::string_view data) const {
    return data_loss("event " + std::to_string(events_) + " of the stream " + what + ": " +
                     quoted(data));
  }

  Status event(int64_t at_us, std::string_view data) {
    ++events_;
    if (done_) return malformed("comes after [DONE]", data);
    if (data == "[DONE]") {
      done_ = true;
      return ok_status();
    }
    const auto document = parse_json(data);
    if (!document.ok()) return malformed("is not JSON", data);
    if (!document->is_object()) return malformed("is not an object", data);
    if (const Json* error = document->find("error"); error != nullptr && !error->is_null()) {
      return unavailable("the reply failed after " + std::to_string(sample_.text_us.size()) +
                         " events with text: " + error_message(*document));
    }
    if (const Json* block = document->find("tensorfold"); block != nullptr) {
      const Json* sha = block->find("token_sha");
      if (sha != nullptr && sha->is_string()) sample_.token_sha = sha->as_string();
    }
    const Json* usage = document->find("usage");
    if (usage != nullptr && !usage->is_null() && !take_usage(*usage)) {
      return malformed("has a usage without prompt_tokens and completion_tokens", data);
    }
    const Json* choices = document->find("choices");
    if (choices == nullptr || !choices->is_array()) return malformed("has no choices", data);
    return choices->as_array().empty() ? ok_status() : choice(at_us, choices->as_array()[0], data);
  }

  bool take_usage(const Json& usage) {
    const auto prompt = count_in(&usage, "prompt_tokens");
    const auto completion = count_in(&usage, "completion_tokens");
    if (!prompt || !completion || *prompt < 0 || *completion < 0) return false;
    sample_.prompt_tokens = *prompt;
    sample_.completion_tokens = *completion;
    sample_.cached_tokens = count_in(usage.find("prompt_tokens_details"), "cached_tokens");
    has_usage_ = true;
    return true;
  }

  Status choice(int64_t at_us, const Json& value, std::string_view data) {
    const Json* delta = value.find("delta");
    size_t text_bytes = 0;
    for (const auto& [object, key, to] :
         {std::tuple{delta, "reasoning_content", &sample_.reasoning},
          {delta, "content", &sample_.text},
          {&value, "text", &sample_.text}}) {
      const Json* part = object != nullptr ? object->find(key) : nullptr;
      if (part == nullptr || part->is_null()) continue;
      if (!part->is_string()) return malformed(std::string("has a ") + key + " of no text", data);
      *to += part->as_string();
      text_bytes += part->as_string().size();
    }
    const Json* reason = value.find("finish_reason");
    if (reason != nullptr && reason->is_string()) {
      sample_.finish_reason = reason->as_string();
      sample_.finish_us = at_us;
    }
    if (text_bytes == 0) return ok_status();
    if (sample_.text_us.size() >= kBenchTextEventsMax ||
        sample_.text.size() + sample_.reasoning.size() > kBenchTextBytesMax) {
      return data_loss("the reply has more text than is read (kBenchTextBytesMax)");
    }
    if (sample_.text_us.empty() && on_first_text_) on_first_text_();
    sample_.text_us.push_back(at_us);
    return ok_status();
  }

  const std::function<void()>& on_first_text_;
  EventStream stream_;
  Sample sample_;
  int64_t events_ = 0;
  bool done_ = false, has_usage_ = false;
};

}  // namespace

Result<Sample> complete(const Target& target, const Ask& ask,
                        const std::function<void()>& on_first_text) {
  const HttpRequest request{"POST",
                            ask.token_ids.empty() ? "/v1/chat/completions" : "/v1/completions",
                            body_of(target, ask)};
  Reader reader(on_first_text);
  const auto reply = target.wire->exchange(
      request, [&](int64_t at_us, std::string_view bytes) { return reader.take(at_us, bytes); });
  if (!reply.ok()) return reply.status();
  if (reply->status != 200) return refused(request, *reply);
  auto sample = reader.finish(*reply);
  if (sample.ok()) sample->past_end = ask.ignore_eos;
  return sample;
}

Result<Json> exchange_json(Wire& wire, const std::string& method, const std::string& path,
                           const std::string& body) {
  const HttpRequest request{method, path, body};
  const auto reply = wire.exchange(request, {});
  if (!reply.ok()) return reply.status();
  if (reply->status != 200) return refused(request, *reply);
  auto document = parse_json(reply->body);
  if (!document.ok()) {
    return data_loss(method + " " + path +
                     " was answered with what is not JSON: " + quoted(reply->body));
  }
  return document;
}

Result<std::string> first_model(Wire& wire) {
  TF_ASSIGN_OR_RETURN(const Json document, exchange_json(wire, "GET", "/v1/models"));
  const Json* data = document.find("data");
  if (data != nullptr && data->is_array() && !data->as_array().empty()) {
    const Json* id = data->as_array()[0].find("id");
    if (id != nullptr && id->is_string()) return id->as_string();
  }
  return data_loss("GET /v1/models lists no model; name one with --model");
}

}  // namespace tensorfold::ctl::bench
