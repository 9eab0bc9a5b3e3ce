// Replies of /v1/completions, whole and streamed. Reasoning and content are one text here.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "daemon/api/reply_writer.h"

namespace tensorfold::api {

struct CompletionLook {
  int choices = 1;
  int n = 1;  // of them share a prompt
  bool include_usage = false;
  int logprobs = -1;         // alternatives; -1: none at all
  int prompt_logprobs = -1;  // the same of the prompt's tokens; not streamed
  bool token_ids = false;
  bool add_bos = false;  // the prompt has the begin token in front, its text does not
  // What stands before each choice's text (echo), or nothing: a text, or ids to be made one.
  std::vector<std::variant<std::string, std::vector<TokenId>>> echo;
};

std::unique_ptr<ReplyWriter> make_completion_writer(bool stream, CompletionLook look);

}  // namespace tensorfold::api
