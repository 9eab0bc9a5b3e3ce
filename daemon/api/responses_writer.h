// Replies of /v1/responses, whole and streamed.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "daemon/api/reply_writer.h"
#include "daemon/api/response_store.h"

namespace tensorfold::api {

class ResponsesWriter : public ReplyWriter {
 public:
  virtual bool has_instructions() const = 0;
  virtual bool wants_store() const = 0;
  virtual void keep(const std::vector<ChatMessage>& messages) = 0;
  virtual void on_complete(std::function<void(StoredResponse)> store) = 0;
};

}  // namespace tensorfold::api
