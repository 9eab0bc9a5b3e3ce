// The four ways in which replies are asked for and written. Data only.
#pragma once

namespace tensorfold::api {

enum class Dialect : unsigned char { kChat, kCompletions, kMessages, kResponses };

}  // namespace tensorfold::api
