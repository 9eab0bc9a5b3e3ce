// tfctl prompt encode, decode and check: the text stage without a daemon.
#include <unistd.h>

#include <cctype>
#include <charconv>
#include <fstream>
#include <istream>
#include <iterator>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include "ctl/prompt/case_check.h"
#include "ctl/prompt/prompt_json.h"
#include "ctl/verbs.h"
#include "daemon/api/chat_request.h"
#include "engine/base/utf8.h"
#include "engine/text/prompt_encoder.h"

namespace tensorfold::ctl {
namespace {

constexpr size_t kInputMaxBytes = size_t{256} << 20;
constexpr std::string_view kTokenizerPlaces[] = {
    "/usr/share/tensorfoldd/tiny/tokenizer.json",
    TF_TREE_DIR "/packaging/tiny-model/model/tokenizer.json",
};

// The whole of a file, or of standard input for "-" and for no name.
Result<std::string> read_input(const Invocation& call, size_t position) {
  const std::string path = position < call.positional.size() ? call.positional[position] : "-";
  std::ifstream file;
  std::istream* in = call.in;
  if (path != "-") {
    file.open(path, std::ios::binary);
    if (!file) return io_error(path, errno);
    in = &file;
  }
  std::string text;
  std::vector<char> chunk(size_t{1} << 16);
  while (in->read(chunk.data(), static_cast<std::streamsize>(chunk.size())) || in->gcount() > 0) {
    text.append(chunk.data(), static_cast<size_t>(in->gcount()));
    if (text.size() > kInputMaxBytes) {
      return invalid_argument(path + ": larger than " + std::to_string(kInputMaxBytes >> 20) +
                              " MiB");
    }
  }
  if (in->bad()) return io_error(path, EIO);
  return text;
}

// The tokenizer named by --tokenizer (a file or a model folder), else the embedded model's.
Result<std::unique_ptr<Tokenizer>> open_tokenizer(const Invocation& call) {
  std::string path = call.get("--tokenizer");
  for (const std::string_view place : kTokenizerPlaces) {
    if (path.empty() && access(std::string(place).c_str(), R_OK) == 0) path = place;
  }
  if (path.empty()) {
    return invalid_argument("no tokenizer: name a tokenizer.json with --tokenizer");
  }
  const std::string inside = path + "/tokenizer.json";
  return Tokenizer::load(access(inside.c_str(), R_OK) == 0 ? inside : path);
}

Result<PromptFormat> format_option(const Invocation& call) {
  const std::string name = call.get("--format", "v4.1");
  if (name == "v4.1") return PromptFormat::kV41;
  if (name == "v4") return PromptFormat::kV4;
  if (name == "v4-0731") return PromptFormat::kV4_0731;
  return invalid_argument("--format " + name + ": v4.1, v4 or v4-0731 expected");
}

// A body with images, which serving refuses: its messages are read in the reference's form, the
// rest as serving does.
Result<EncodedPrompt> encode_with_images(const std::string& body, PromptFormat format) {
  Result<Json> json = parse_json(body);
  if (!json.ok()) return json.status();
  const Json* list = json->find("messages");
  if (list == nullptr) return invalid_argument("messages is missing", "messages");
  Result<std::vector<PromptMessage>> messages = messages_from_json(*list);
  if (!messages.ok()) return messages.status();
  for (PromptMessage& message : *messages) {
    if (message.role == "developer") message.role = "system";
    if (message.content.kind == PromptContent::Kind::kNull) message.content = {};
  }
  json->set(
      "messages",
      Json::array({Json::object({{"role", Json::string("user")}, {"content", Json::string("")}})}));
  Result<api::ChatCall> call = api::parse_chat(dump_json_compact(*json), {});
  if (!call.ok()) return call.status();
  const Prompt& prompt = call->request.prompt;
  return encode_serving(std::move(*messages), prompt.tools, prompt.thinking, format, false);
}

Result<EncodedPrompt> encode_body(const std::string& body, PromptFormat format) {
  Result<api::ChatCall> call = api::parse_chat(body, {});
  if (call.ok()) return encode_prompt(call->request.prompt, format, false);
  if (call.status().reason() != "unsupported_content") return call.status();
  Result<EncodedPrompt> encoded = encode_with_images(body, format);
  return encoded.ok() && !encoded->images.empty() ? encoded : call.status();
}

// Ids as a JSON list or as numbers between spaces and commas.
Result<std::vector<TokenId>> read_ids(std::string_view text) {
  std::vector<TokenId> ids;
  size_t at = 0;
  while (true) {
    at = text.find_first_not_of(" \t\r\n,[]", at);
    if (at == std::string_view::npos) return ids;
    TokenId id = 0;
    const auto r = std::from_chars(text.data() + at, text.data() + text.size(), id);
    if (r.ec != std::errc()) {
      return invalid_argument("a token id expected at byte " + std::to_string(at));
    }
    at = static_cast<size_t>(r.ptr - text.data());
    ids.push_back(id);
  }
}

Json ids_json(const std::vector<TokenId>& ids) {
  Json::Array list;
  for (const TokenId id : ids) list.push_back(Json::integer(id));
  return Json::array(std::move(list));
}

Json report_json(const CheckReport& report) {
  Json::Object groups;
  for (const CheckGroup& group : report.groups) {
    groups.emplace_back(group.name, Json::object({{"right", Json::integer(group.right)},
                                                  {"wrong", Json::integer(group.wrong)}}));
  }
  Json::Array failures, ignored;
  for (const CheckFailure& failure : report.failures) {
    failures.push_back(Json::object({{"group", Json::string(failure.group)},
                                     {"name", Json::string(failure.name)},
                                     {"reason", Json::string(failure.reason)}}));
  }
  for (const std::string& field : report.ignored) ignored.push_back(Json::string(field));
  return Json::object({{"right", Json::integer(report.right())},
                       {"wrong", Json::integer(report.wrong())},
                       {"groups", Json::object(std::move(groups))},
                       {"token_ids_compared", Json::integer(report.token_ids_compared)},
                       {"token_ids_skipped", Json::integer(report.token_ids_skipped)},
                       {"cuts_compared", Json::integer(report.cuts_compared)},
                       {"failures", Json::array(std::move(failures))},
                       {"ignored_fields", Json::array(std::move(ignored))}});
}

void print_report(const CheckReport& report, std::ostream& out) {
  for (const CheckFailure& failure : report.failures) {
    out << "wrong  " << failure.group << "  " << failure.name << ": " << failure.reason << "\n";
  }
  for (const CheckGroup& group : report.groups) {
    out << group.name << ": " << group.right << " right, " << group.wrong << " wrong\n";
  }
  out << "token ids: " << report.token_ids_compared << " cases compared";
  if (report.token_ids_skipped > 0) {
    out << ", " << report.token_ids_skipped << " not (no --tokenizer)";
  }
  out << "\nreplies: " << report.cuts_compared << " ways of cutting compared\n";
  for (const std::string& field : report.ignored) out << "ignored field: " << field << "\n";
  out << "right " << report.right() << ", wrong " << report.wrong() << "\n";
}

}  // namespace

int run_prompt_encode(const Invocation& call) {
  const Result<PromptFormat> format = format_option(call);
  if (!format.ok()) return fail(call, format.status());
  const Result<std::string> body = read_input(call, 0);
  if (!body.ok()) return fail(call, body.status());
  const Result<EncodedPrompt> prompt = encode_body(*body, *format);
  if (!prompt.ok()) return fail(call, prompt.status());
  if (!call.has("--tokens")) {
    *call.out << prompt->text;
    return kExitOk;
  }
  const Result<std::unique_ptr<Tokenizer>> tokenizer = open_tokenizer(call);
  if (!tokenizer.ok()) return fail(call, tokenizer.status());
  const bool control = call.has("--control-tokens");
  const std::vector<TokenId> ids =
      (*tokenizer)
          ->encode(prompt->text, control ? std::span<const TextSpan>() : std::span(prompt->plain));
  *call.out << dump_json_python(ids_json(ids)) << "\n";
  return kExitOk;
}

int run_prompt_decode(const Invocation& call) {
  const Result<std::string> input = read_input(call, 0);
  if (!input.ok()) return fail(call, input.status());
  const Result<std::vector<TokenId>> ids = read_ids(*input);
  if (!ids.ok()) return fail(call, ids.status());
  const Result<std::unique_ptr<Tokenizer>> tokenizer = open_tokenizer(call);
  if (!tokenizer.ok()) return fail(call, tokenizer.status());
  for (const TokenId id : *ids) {
    if (id < 0 || id >= (*tokenizer)->vocab_size()) {
      return fail(call, invalid_argument("token id " + std::to_string(id) +
                                         " is not in the vocabulary of " +
                                         std::to_string((*tokenizer)->vocab_size())));
    }
  }
  const std::string text = (*tokenizer)->decode(*ids);
  if (call.json) {
    Json::Array tokens;
    for (const TokenId id : *ids) {
      tokens.push_back(Json::string(utf8_lossy((*tokenizer)->token_bytes(id))));
    }
    *call.out << dump_json_python(Json::object({{"text", Json::string(utf8_lossy(text))},
                                                {"ids", ids_json(*ids)},
                                                {"tokens", Json::array(std::move(tokens))}}))
              << "\n";
  } else {
    *call.out << text;
  }
  return kExitOk;
}

int run_prompt_check(const Invocation& call) {
  const Result<std::string> text = read_input(call, 0);
  if (!text.ok()) return fail(call, text.status());
  const Result<Json> file = parse_json(*text);
  if (!file.ok()) return fail(call, file.status().with_context(call.positional[0]));
  std::unique_ptr<Tokenizer> tokenizer;
  if (call.has("--tokenizer")) {
    Result<std::unique_ptr<Tokenizer>> opened = open_tokenizer(call);
    if (!opened.ok()) return fail(call, opened.status());
    tokenizer = std::move(*opened);
  }
  const Result<CheckReport> report = check_cases(*file, tokenizer.get());
  if (!report.ok()) return fail(call, report.status().with_context(call.positional[0]));
  if (call.json) {
    *call.out << dump_json_python(report_json(*report)) << "\n";
  } else {
    print_report(*report, *call.out);
  }
  return report->wrong() == 0 ? kExitOk : kExitFailed;
}

}  // namespace tensorfold::ctl
