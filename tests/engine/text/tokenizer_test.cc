// The tokenizer on a small vocabulary: merges, added tokens, plain spans, bounds on the work, and
// files that are refused.
#include "engine/text/tokenizer.h"

#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <thread>

#include "tests/engine/text/text_fixture.h"

namespace tensorfold {
namespace {

using test::small_tokenizer;
using test::tokenizer_json;
using test::TokenizerSpec;

std::vector<std::string> pieces(const Tokenizer& tokenizer, std::string_view text,
                                std::span<const TextSpan> plain = {}) {
  std::vector<std::string> out;
  for (const TokenId id : tokenizer.encode(text, plain))
    out.emplace_back(tokenizer.token_bytes(id));
  return out;
}

using Pieces = std::vector<std::string>;

BOOST_AUTO_TEST_CASE(merges_go_by_rank_and_from_the_left) {
  const auto t = small_tokenizer();
  BOOST_TEST(pieces(*t, "hello hello") == (Pieces{"hello", " hello"}));
  BOOST_TEST(pieces(*t, "hell") == Pieces{"hell"});
  BOOST_TEST(pieces(*t, "aaaaaaa") == (Pieces{"aaaa", "aa", "a"}));
  BOOST_TEST(pieces(*t, "abab") == Pieces{"abab"});
  BOOST_TEST(pieces(*t, "baba") == (Pieces{"b", "ab", "a"}));  // "ab" has the lower rank
  BOOST_TEST(pieces(*t, "").empty());
  const auto strings = small_tokenizer({.merges_as_strings = true});
  BOOST_TEST(strings->encode("hello hello\n\n") == t->encode("hello hello\n\n"));
}

// The long path (a heap) and the short one (a scan) must agree: both against merging by the book.
std::vector<TokenId> by_the_book(const Tokenizer& t, const TokenizerSpec& spec,
                                 std::string_view word) {
  std::vector<std::string> parts;
  for (const char c : word) parts.emplace_back(1, c);
  for (bool merged = true; merged;) {
    merged = false;
    for (const auto& [left, right] : spec.merges) {
      for (size_t i = 0; i + 1 < parts.size() && !merged; ++i) {
        if (parts[i] != left || parts[i + 1] != right) continue;
        parts[i] += right;
        parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        merged = true;
      }
      if (merged) break;
    }
  }
  std::vector<TokenId> ids;
  for (const std::string& part : parts) {
    for (TokenId id = 0; id < t.vocab_size(); ++id) {
      if (t.token_bytes(id) == part && !t.is_added(id)) ids.push_back(id);
    }
  }
  return ids;
}

BOOST_AUTO_TEST_CASE(short_and_long_pieces_merge_by_the_book) {
  const TokenizerSpec spec;
  const auto t = small_tokenizer(spec);
  std::mt19937 random(3);
  for (int i = 0; i < 400; ++i) {
    std::string word;
    for (auto n = 1 + random() % (i % 2 == 0 ? 24 : 90); n > 0; --n)
      word += "aabhelo"[random() % 7];
    BOOST_TEST(t->encode(word) == by_the_book(*t, spec, word), word);
  }
}

BOOST_AUTO_TEST_CASE(added_tokens_are_cut_out_leftmost_and_longest) {
  const auto t = small_tokenizer();
  BOOST_TEST(pieces(*t, "a<think>ing</think>b") == (Pieces{"a", "<think>ing", "</think>", "b"}));
  BOOST_TEST(pieces(*t, "<think>in") == (Pieces{"<think>", "i", "n"}));
  BOOST_TEST(pieces(*t, "<｜DSML｜ calls>\n") == (Pieces{"<", "｜DSML｜", " calls", ">\n"}));
  BOOST_TEST(t->id_of("｜DSML｜").has_value());
  BOOST_TEST(t->is_added(*t->id_of("｜DSML｜")));
  BOOST_TEST(!t->id_of("hello").has_value());
  BOOST_TEST(t->decode(t->encode("x<｜User｜>hello")) == "x<｜User｜>hello");
}

BOOST_AUTO_TEST_CASE(plain_spans_keep_control_text_as_text_and_cut_nothing) {
  const auto t = small_tokenizer();
  const std::string text = "<｜User｜>hello<think></think>";
  //                        0          11   16     23
  const std::vector<TextSpan> user = {{12, 24}};
  const auto ids = t->encode(text, user);
  BOOST_TEST(t->decode(ids) == text);
  BOOST_TEST(ids.front() == *t->id_of("<｜User｜>"));
  BOOST_TEST(ids.back() == *t->id_of("</think>"));
  for (size_t i = 1; i + 1 < ids.size(); ++i) BOOST_TEST(!t->is_added(ids[i]));
  // Merges run across the borders of a span.
  BOOST_TEST(pieces(*t, "hello", std::vector<TextSpan>{{2, 3}}) == Pieces{"hello"});
  // A token that touches one plain byte is no token; one beside the span is.
  for (size_t at = 0; at < 7; ++at) {
    const std::vector<TextSpan> one = {{at, at + 1}};
    BOOST_TEST(t->encode("<think>", one).size() > 1u);
  }
  BOOST_TEST(pieces(*t, "a<think>b", std::vector<TextSpan>{{0, 1}, {8, 9}}) ==
             (Pieces{"a", "<think>", "b"}));
  // Where the longest token reaches into a span, a shorter one may still stand before it.
  BOOST_TEST(pieces(*t, "<think>ing", std::vector<TextSpan>{{8, 10}}) ==
             (Pieces{"<think>", "i", "n", "g"}));
}

BOOST_AUTO_TEST_CASE(every_byte_string_comes_back) {
  const auto t = small_tokenizer();
  std::mt19937 random(5);
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    for (auto n = random() % 40; n > 0; --n) {
      text += static_cast<char>(random() % 3 == 0 ? random() % 256 : "a <th\n｜"[random() % 9]);
    }
    BOOST_REQUIRE(t->decode(t->encode(text)) == text);
  }
  BOOST_TEST(t->decode(std::vector<TokenId>{-1, 1'000'000}).empty());
  BOOST_TEST(t->token_bytes(-1).empty());
}

BOOST_AUTO_TEST_CASE(concurrent_calls_give_the_same_ids) {
  const auto t = small_tokenizer();
  std::string text;
  for (int i = 0; i < 3000; ++i) text += "hello a" + std::to_string(i) + " calls<think>\n\n";
  const auto wanted = t->encode(text);
  std::vector<std::thread> threads;
  std::array<bool, 4> same{};
  for (size_t i = 0; i < same.size(); ++i) {
    threads.emplace_back([&, i] { same[i] = t->encode(text) == wanted; });
  }
  for (std::thread& thread : threads) thread.join();
  for (const bool ok : same) BOOST_TEST(ok);
}

// ---------------------------------------------------------------- the bound on the work

std::string repeated(std::string_view unit, size_t bytes) {
  std::string out;
  while (out.size() < bytes) out += unit;
  out.resize(bytes);
  return out;
}

std::string random_letters(std::string_view alphabet, size_t bytes) {
  std::mt19937 random(11);
  std::string out;
  while (out.size() < bytes) out += alphabet[random() % alphabet.size()];
  return out;
}

BOOST_AUTO_TEST_CASE(work_stays_under_forty_n_log_n_on_adversarial_texts) {
  const struct {
    const char* name;
    std::function<std::string(size_t)> make;
  } generators[] = {
      {"one letter", [](size_t n) { return repeated("a", n); }},
      {"two letters in turn", [](size_t n) { return repeated("ab", n); }},
      {"merges that undo each other", [](size_t n) { return repeated("aab", n); }},
      {"random letters in one word", [](size_t n) { return random_letters("abhelo", n); }},
      {"white space without an end", [](size_t n) { return repeated(" ", n - 1) + "x"; }},
      {"line ends and spaces", [](size_t n) { return repeated("\n  ", n); }},
      {"beginnings of added tokens", [](size_t n) { return repeated("<｜Use<think", n); }},
      {"words of 24 and 25 bytes",
       [](size_t n) { return repeated("abababaabaababaababababa abababaabaababaababababaa ", n); }},
  };
  const auto t = small_tokenizer();
  for (const auto& generator : generators) {
    for (const size_t n : {size_t{1000}, size_t{100'000}, size_t{2'000'000}}) {
      const std::string text = generator.make(n);
      uint64_t steps = 0;
      const auto ids = t->encode(text, {}, &steps);
      const auto size = static_cast<double>(text.size());
      const double bound = 40 * size * std::log2(size);
      BOOST_TEST(static_cast<double>(steps) < bound, generator.name << ", " << n << " bytes");
      BOOST_TEST(steps >= text.size());  // the counter counts
      BOOST_REQUIRE(t->decode(ids) == text);
    }
  }
}

// ---------------------------------------------------------------- files that are refused

std::string refusal(const Json& file) {
  const auto t = Tokenizer::parse(dump_json_compact(file), "tokenizer.json");
  return t.ok() ? "accepted" : t.status().message();
}

// The file with one value replaced; a path step is a member name or an index.
Json changed(Json file, const std::vector<std::string>& path, Json value) {
  Json* at = &file;
  for (size_t i = 0; i + 1 < path.size(); ++i) {
    if (at->is_array()) {
      at = &at->as_array()[std::stoul(path[i])];
      continue;
    }
    for (auto& member : at->as_object()) {
      if (member.first == path[i]) at = &member.second;
    }
  }
  at->set(path.back(), std::move(value));
  return file;
}

BOOST_AUTO_TEST_CASE(what_is_not_implemented_is_refused_by_its_field) {
  const Json text = Json::string("x"), yes = Json::boolean(true), one = Json::integer(1);
  const Json object = Json::object({{"type", text}});
  const struct {
    std::vector<std::string> path;
    Json value;
    std::string says;
  } cases[] = {
      {{"truncation"}, object, "truncation: null expected"},
      {{"padding"}, object, "padding: null expected"},
      {{"normalizer"}, object, "normalizer.type: 'Sequence' expected"},
      {{"post_processor"}, object, "post_processor.type: 'ByteLevel' expected"},
      {{"decoder"}, object, "decoder.type: 'ByteLevel' expected"},
      {{"decoder"}, Json::null(), "decoder: an object expected"},
      {{"extra"}, one, "extra: unknown field"},
      {{"pre_tokenizer", "type"}, text, "pre_tokenizer.type"},
      {{"pre_tokenizer", "pretokenizers"}, Json::array({}), "pre_tokenizer.pretokenizers"},
      {{"pre_tokenizer", "pretokenizers", "1", "behavior"}, text, "pretokenizers[1].behavior"},
      {{"pre_tokenizer", "pretokenizers", "2", "invert"}, yes, "pretokenizers[2].invert"},
      {{"pre_tokenizer", "pretokenizers", "0", "pattern", "Regex"},
       text,
       "pretokenizers[0].pattern.Regex"},
      {{"pre_tokenizer", "pretokenizers", "3", "use_regex"}, yes, "pretokenizers[3].use_regex"},
      {{"pre_tokenizer", "pretokenizers", "3", "add_prefix_space"}, yes, "add_prefix_space"},
      {{"model", "type"}, Json::string("Unigram"), "model.type: 'BPE' expected"},
      {{"model", "dropout"}, Json::real(0.1), "model.dropout: null expected"},
      {{"model", "unk_token"}, text, "model.unk_token: null expected"},
      {{"model", "continuing_subword_prefix"}, text, "model.continuing_subword_prefix"},
      {{"model", "end_of_word_suffix"}, text, "model.end_of_word_suffix"},
      {{"model", "byte_fallback"}, yes, "model.byte_fallback: true is not supported"},
      {{"model", "ignore_merges"}, yes, "model.ignore_merges: true is not supported"},
      {{"model", "vocab"}, Json::array({}), "model.vocab: an object expected"},
      {{"model", "vocab"}, Json::object({{"a", one}}), "is not in model.vocab"},
      {{"model", "merges"}, text, "model.merges: a list expected"},
      {{"model", "merges"}, Json::array({Json::string("a b c")}), "model.merges[0]"},
      {{"model", "merges"}, Json::array({Json::string("q z")}), "'qz' is not in model.vocab"},
      {{"model", "merges"}, Json::array({Json::array({text})}), "model.merges[0]: two tokens"},
      {{"added_tokens"}, text, "added_tokens: a list expected"},
      {{"added_tokens", "0", "lstrip"}, yes, "added_tokens[0].lstrip: true is not supported"},
      {{"added_tokens", "1", "rstrip"}, yes, "added_tokens[1].rstrip"},
      {{"added_tokens", "2", "single_word"}, yes, "added_tokens[2].single_word"},
      {{"added_tokens", "0", "content"}, Json::string(""), "added_tokens[0].content"},
      {{"added_tokens", "0", "content"},
       Json::string(std::string(kAddedTokenMaxBytes + 1, 'x')),
       "added_tokens[0].content"},
      {{"added_tokens", "0", "content"}, Json::string("</think>"), "the token is there twice"},
      {{"added_tokens", "0", "id"}, Json::integer(5), "the id 5 is taken"},
      {{"added_tokens", "0", "id"}, Json::integer(-1), "a token id from 0"},
      {{"added_tokens", "0", "id"}, Json::integer(kTokenizerVocabMaxTokens), "a token id from 0"},
      {{"added_tokens", "0", "id"}, Json::real(1.5), "a token id from 0"},
      {{"added_tokens", "0", "special"}, one, "added_tokens[0].special"},
      {{"added_tokens", "0", "color"}, one, "added_tokens[0].color: unknown field"},
      {{"model", "vocab", "a"}, Json::integer(98), "two tokens have the id 98"},
      {{"model", "vocab", "a"}, text, "a token id from 0"},
      {{"model", "vocab", "a"}, Json::integer(int64_t{1} << 40), "a token id from 0"},
  };
  BOOST_TEST(refusal(tokenizer_json()) == "accepted");
  for (const auto& c : cases) {
    const std::string message = refusal(changed(tokenizer_json(), c.path, c.value));
    BOOST_TEST(message.find(c.says) != std::string::npos,
               c.says << " expected, found: " << message);
    BOOST_TEST(message.starts_with("tokenizer.json: "), message);
  }
}

BOOST_AUTO_TEST_CASE(broken_files_are_refused_with_the_file_named) {
  const std::string good = dump_json_compact(tokenizer_json());
  for (const size_t cut : {size_t{0}, size_t{1}, good.size() / 3, good.size() - 1}) {
    const auto t = Tokenizer::parse(good.substr(0, cut), "cut.json");
    BOOST_REQUIRE(!t.ok());
    BOOST_TEST(t.status().message().starts_with("cut.json: not JSON"), t.status().message());
  }
  const auto twice = Tokenizer::parse("{\"model\":{},\"model\":{}}", "f");
  BOOST_TEST(twice.status().message() == "f: model: the field is there twice");
  BOOST_TEST(Tokenizer::parse("{}", "f").status().message() ==
             "f: pre_tokenizer: the field is missing");
  BOOST_TEST(!Tokenizer::parse(std::string(5000, '['), "f").ok());
  BOOST_TEST(Tokenizer::load("/nowhere/tokenizer.json")
                 .status()
                 .message()
                 .find("/nowhere/tokenizer.json") != std::string::npos);
  BOOST_TEST(!Tokenizer::load("/").ok());
}

BOOST_AUTO_TEST_CASE(a_file_beyond_the_bound_is_refused_before_it_is_read) {
  const auto path =
      std::filesystem::temp_directory_path() / ("tf_tokenizer_test." + std::to_string(getpid()));
  std::ofstream(path) << "{}";
  std::filesystem::resize_file(path, kTokenizerFileMaxBytes + 1);  // sparse
  const auto t = Tokenizer::load(path.string());
  std::filesystem::remove(path);
  BOOST_REQUIRE(!t.ok());
  BOOST_TEST(t.status().message().find("larger than 256 MiB") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_vocabulary_without_a_byte_is_refused) {
  Json file = tokenizer_json();
  for (auto& member : file.as_object()) {
    if (member.first != "model") continue;
    for (auto& field : member.second.as_object()) {
      if (field.first == "vocab") field.second.as_object().erase(field.second.as_object().begin());
    }
  }
  BOOST_TEST(refusal(file).find("no token for byte 0") != std::string::npos, refusal(file));
}

}  // namespace
}  // namespace tensorfold
