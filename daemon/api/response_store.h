// Stored replies of /v1/responses: what GET gives and what a later previous_response_id goes on
// with. In memory only, the oldest go first.
//
// Owner: the loop thread. A response belongs to the key that made it: others do not see it.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "daemon/api/reply_order.h"

namespace tensorfold::api {

inline constexpr size_t kStoredResponsesMax = 1024;                   // responses kept
inline constexpr size_t kStoredBytesMax = size_t{256} * 1024 * 1024;  // of all of them

// What the writer of a response hands over when it is complete.
struct StoredResponse {
  std::string id, label;
  std::string json;                   // the response object
  std::vector<ChatMessage> messages;  // the conversation, the reply included, without instructions
};

class ResponseStore {
 public:
  // Completes an order: puts the earlier conversation in front, and has the reply stored if it
  // asks for that. kNotFound for a previous_response_id that is not kept (any more).
  Status attach(ReplyOrder& order, const std::string& label);

  const StoredResponse* find(std::string_view id, std::string_view label) const;
  bool erase(std::string_view id, std::string_view label);
  void put(StoredResponse response);

  size_t size() const { return list_.size(); }
  size_t bytes() const { return bytes_; }

 private:
  using List = std::list<StoredResponse>;  // the oldest first
  void drop(List::iterator it);

  List list_;
  std::unordered_map<std::string, List::iterator> by_id_;
  size_t bytes_ = 0;
};

}  // namespace tensorfold::api
