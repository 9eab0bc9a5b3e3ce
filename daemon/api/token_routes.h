// /tokenize, /detokenize and count_tokens: a body in, an answer out. Pure but for the engine's
// tokenizer; they run on a worker, because a long text takes its time.
#pragma once

#include <string_view>

#include "daemon/api/reply_service.h"

namespace tensorfold::api {

inline constexpr size_t kDetokenizeIdsMax = size_t{1} << 20;

http::Response answer_tokenize(const Engine& engine, const ReplySettings& settings,
                               std::string_view body);
http::Response answer_detokenize(const Engine& engine, const ReplySettings& settings,
                                 std::string_view body);
http::Response answer_count_tokens(const Engine& engine, const ReplySettings& settings,
                                   std::string_view body);

}  // namespace tensorfold::api
