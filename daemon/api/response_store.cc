// See the header.
#include "daemon/api/response_store.h"

#include "daemon/api/responses_writer.h"

namespace tensorfold::api {
namespace {

size_t bytes_of(const StoredResponse& response) {
  constexpr size_t kPerEntry = 512, kPerMessage = 256;  // what the objects themselves take
  size_t n = kPerEntry + response.id.size() + response.label.size() + response.json.size();
  for (const ChatMessage& message : response.messages) {
    n += kPerMessage + message.reasoning.value_or("").size();
    for (const ContentPart& part : message.content) n += part.text.size() + sizeof part;
    for (const ToolCall& call : message.tool_calls) {
      n += call.id.size() + call.name.size() + dump_json_compact(call.arguments).size();
    }
  }
  return n;
}

}  // namespace

Status ResponseStore::attach(ReplyOrder& order, const std::string& label) {
  auto& writer = static_cast<ResponsesWriter&>(*order.writer);
  auto& messages = order.prompts[0].prompt.messages;
  if (!order.previous.empty()) {
    const StoredResponse* earlier = find(order.previous, label);
    if (earlier == nullptr) {
      return Status(StatusCode::kNotFound,
                    "no response with the id '" + order.previous.substr(0, 64) + "' is stored",
                    "previous_response_id", "previous_response_not_found");
    }
    // After the instructions, which are this request's own.
    const bool led = !messages.empty() && writer.has_instructions();
    messages.insert(messages.begin() + (led ? 1 : 0), earlier->messages.begin(),
                    earlier->messages.end());
    settle_calls(order);  // some may be in what was said before
  }
  writer.keep(messages);
  if (writer.wants_store()) {
    writer.on_complete([this, label](StoredResponse response) {
      response.label = label;
      put(std::move(response));
    });
  }
  return ok_status();
}

const StoredResponse* ResponseStore::find(std::string_view id, std::string_view label) const {
  const auto it = by_id_.find(std::string(id));
  if (it == by_id_.end() || it->second->label != label) return nullptr;
  return &*it->second;
}

bool ResponseStore::erase(std::string_view id, std::string_view label) {
  if (find(id, label) == nullptr) return false;
  drop(by_id_.find(std::string(id))->second);
  return true;
}

void ResponseStore::put(StoredResponse response) {
  const size_t bytes = bytes_of(response);
  if (bytes > kStoredBytesMax) return;
  if (const auto it = by_id_.find(response.id); it != by_id_.end()) drop(it->second);
  while (list_.size() >= kStoredResponsesMax || bytes_ + bytes > kStoredBytesMax) {
    drop(list_.begin());
  }
  bytes_ += bytes;
  list_.push_back(std::move(response));
  by_id_.emplace(list_.back().id, std::prev(list_.end()));
}

void ResponseStore::drop(List::iterator it) {
  bytes_ -= bytes_of(*it);
  by_id_.erase(it->id);
  list_.erase(it);
}

}  // namespace tensorfold::api
