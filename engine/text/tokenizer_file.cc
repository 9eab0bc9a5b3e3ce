#include "engine/text/tokenizer_file.h"

#include <simdjson.h>

#include <algorithm>
#include <initializer_list>
#include <unordered_map>
#include <unordered_set>

#include "engine/base/utf8.h"

namespace tensorfold {

// As tokenizer.json holds them after JSON unescaping; see pretokenizer.h for what they mean.
const std::array<std::string_view, 3> kSplitPatterns = {
    R"(\p{N}{1,3})",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^)"
    "\r\n"
    R"(\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[)"
    "\r\n"
    R"(]*|\s*[)"
    "\r\n"
    R"(]+|\s+(?!\S)|\s+)",
};

namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

constexpr size_t kMessageTextMaxBytes = 80;  // of a value quoted in an error

std::string shown(element value) {
  std::string text = simdjson::minify(value);
  if (text.size() > kMessageTextMaxBytes) text = text.substr(0, kMessageTextMaxBytes) + "...";
  return utf8_lossy(text);
}

// A regex with its escapes \r and \n as the characters they mean.
std::string line_ends_raw(std::string_view regex) {
  std::string out;
  for (size_t i = 0; i < regex.size(); ++i) {
    if (regex[i] != '\\' || i + 1 == regex.size()) {
      out += regex[i];
      continue;
    }
    const char next = regex[++i];
    if (next == 'r' || next == 'n') {
      out += next == 'r' ? '\r' : '\n';
    } else {
      out += '\\';
      out += next;
    }
  }
  return out;
}

// Byte-level BPE spells bytes as printable characters: most of Latin-1 as itself, the others from
// U+0100 on in byte order.
class ByteAlphabet {
 public:
  ByteAlphabet() {
    char32_t next = 0x100;
    for (unsigned b = 0; b < 256; ++b) {
      const bool itself =
          (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
      const char32_t c = itself ? static_cast<char32_t>(b) : next++;
      byte_of_.emplace(c, static_cast<char>(b));
      utf8_append(spelling_[b], c);
    }
  }
  const std::string& spelling(unsigned byte) const { return spelling_[byte]; }

  // The bytes that a token's text spells. A text with any other character spells itself.
  std::string bytes_of(std::string_view text) const {
    std::string out;
    for (size_t at = 0; at < text.size();) {
      const Utf8Step step = utf8_step(text, at);
      const auto it = byte_of_.find(step.code_point);
      if (!step.valid || it == byte_of_.end()) return std::string(text);
      out.push_back(it->second);
      at += step.bytes;
    }
    return out;
  }

 private:
  std::unordered_map<char32_t, char> byte_of_;
  std::array<std::string, 256> spelling_;
};

class FileReader {
 public:
  explicit FileReader(std::string_view where) : where_(where) {}

  Result<TokenizerTables> read(std::string_view json) {
    simdjson::dom::parser parser;
    element root;
    const auto error = parser.parse(json.data(), json.size()).get(root);
    if (error != simdjson::SUCCESS) {
      damaged("", std::string("not JSON: ") + simdjson::error_message(error));
      return status_;
    }
    if (!read_root(root)) return status_;
    return std::move(tables_);
  }

 private:
  bool report(StatusCode code, const std::string& field, const std::string& what) {
    std::string message(where_);
    message += ": ";
    if (!field.empty()) message += field + ": ";
    status_ = Status(code, message + what);
    return false;
  }
  bool damaged(const std::string& field, const std::string& what) {
    return report(StatusCode::kDataLoss, field, what);
  }
  bool refuse(const std::string& field, const std::string& what) {
    return report(StatusCode::kUnsupported, field, what);
  }

  static std::string join(const std::string& path, std::string_view key) {
    return path.empty() ? std::string(key) : path + "." + std::string(key);
  }

  // An object with known keys only, none twice.
  bool open(element value, const std::string& path, std::initializer_list<std::string_view> keys,
            object* out) {
    if (value.get(*out) != simdjson::SUCCESS) {
      return damaged(path, "an object expected, found " + shown(value));
    }
    std::unordered_set<std::string_view> seen;
    for (const auto field : *out) {
      if (std::find(keys.begin(), keys.end(), field.key) == keys.end()) {
        return refuse(join(path, utf8_lossy(field.key)), "unknown field");
      }
      if (!seen.insert(field.key).second) {
        return damaged(join(path, field.key), "the field is there twice");
      }
    }
    return true;
  }

  static bool get(object from, std::string_view key, element* out) {
    return from.at_key(key).get(*out) == simdjson::SUCCESS;
  }

  bool need(object from, const std::string& path, std::string_view key, element* out) {
    return get(from, key, out) || damaged(join(path, key), "the field is missing");
  }

  // Absent, null or (where allowed) the empty string.
  bool need_null(object from, const std::string& path, std::string_view key, bool or_empty) {
    element value;
    if (!get(from, key, &value) || value.is_null()) return true;
    std::string_view text;
    if (or_empty && value.get(text) == simdjson::SUCCESS && text.empty()) return true;
    return refuse(join(path, key), "null expected, found " + shown(value));
  }

  bool need_bool(object from, const std::string& path, std::string_view key, bool wanted) {
    element value;
    if (!get(from, key, &value)) return true;
    bool found = false;
    if (value.get(found) != simdjson::SUCCESS) {
      return damaged(join(path, key), "true or false expected, found " + shown(value));
    }
    if (found == wanted) return true;
    return refuse(join(path, key), found ? "true is not supported" : "false is not supported");
  }

  bool need_text(object from, const std::string& path, std::string_view key,
                 std::string_view wanted) {
    element value;
    if (!need(from, path, key, &value)) return false;
    std::string_view text;
    if (value.get(text) == simdjson::SUCCESS && text == wanted) return true;
    return refuse(join(path, key), "'" + std::string(wanted) + "' expected, found " + shown(value));
  }

  bool read_root(element root) {
    object top;
    if (!open(root, "",
              {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
               "post_processor", "decoder", "model"},
              &top)) {
      return false;
    }
    element model, pre_tokenizer, decoder, added;
    return need_null(top, "", "truncation", false) && need_null(top, "", "padding", false) &&
           check_normalizer(top) && need(top, "", "pre_tokenizer", &pre_tokenizer) &&
           check_pre_tokenizer(pre_tokenizer) && check_post_processor(top) &&
           need(top, "", "decoder", &decoder) && check_byte_level(decoder, "decoder") &&
           need(top, "", "model", &model) && read_model(model) && check_bytes() &&
           (!get(top, "added_tokens", &added) || read_added(added));
  }

  bool check_normalizer(object top) {
    element value;
    if (!get(top, "normalizer", &value) || value.is_null()) return true;
    object normalizer;
    if (value.get(normalizer) != simdjson::SUCCESS) {
      return damaged("normalizer", "an object expected, found " + shown(value));
    }
    if (!need_text(normalizer, "normalizer", "type", "Sequence")) return false;
    element list;
    if (!need(normalizer, "normalizer", "normalizers", &list)) return false;
    array items;
    if (list.get(items) == simdjson::SUCCESS && items.size() == 0) return true;
    return refuse("normalizer.normalizers", "an empty list expected, found " + shown(list));
  }

  bool check_byte_level(element value, const std::string& path) {
    object fields;
    return open(value, path, {"type", "add_prefix_space", "trim_offsets", "use_regex"}, &fields) &&
           need_text(fields, path, "type", "ByteLevel");
  }

  // Adds nothing to the ids when it is ByteLevel; every other kind would.
  bool check_post_processor(object top) {
    element value;
    if (!get(top, "post_processor", &value) || value.is_null()) return true;
    return check_byte_level(value, "post_processor");
  }

  bool check_pre_tokenizer(element value) {
    const std::string path = "pre_tokenizer";
    object fields;
    element list;
    array items;
    if (!open(value, path, {"type", "pretokenizers"}, &fields)) return false;
    if (!need_text(fields, path, "type", "Sequence")) return false;
    if (!need(fields, path, "pretokenizers", &list)) return false;
    if (list.get(items) != simdjson::SUCCESS || items.size() != kSplitPatterns.size() + 1) {
      return refuse(path + ".pretokenizers", "three Split and one ByteLevel expected");
    }
    size_t i = 0;
    for (const element item : items) {
      const std::string at = path + ".pretokenizers[" + std::to_string(i) + "]";
      const bool fine = i < kSplitPatterns.size() ? check_split(item, at, kSplitPatterns[i])
                                                  : check_byte_level_split(item, at);
      if (!fine) return false;
      ++i;
    }
    return true;
  }

  // A pattern may hold line ends as characters or as the escapes \r and \n: one regex.
  bool need_pattern(object from, const std::string& path, std::string_view wanted) {
    element value;
    if (!need(from, path, "Regex", &value)) return false;
    std::string_view text;
    if (value.get(text) == simdjson::SUCCESS && line_ends_raw(text) == wanted) return true;
    return refuse(join(path, "Regex"),
                  "'" + std::string(wanted) + "' expected, found " + shown(value));
  }

  bool check_split(element value, const std::string& path, std::string_view pattern) {
    object fields, inner;
    element holder;
    return open(value, path, {"type", "pattern", "behavior", "invert"}, &fields) &&
           need_text(fields, path, "type", "Split") &&
           need_text(fields, path, "behavior", "Isolated") &&
           need_bool(fields, path, "invert", false) && need(fields, path, "pattern", &holder) &&
           open(holder, path + ".pattern", {"Regex"}, &inner) &&
           need_pattern(inner, path + ".pattern", pattern);
  }

  bool check_byte_level_split(element value, const std::string& path) {
    object fields;
    element present;
    return check_byte_level(value, path) && value.get(fields) == simdjson::SUCCESS &&
           need(fields, path, "add_prefix_space", &present) &&
           need_bool(fields, path, "add_prefix_space", false) &&
           need(fields, path, "use_regex", &present) && need_bool(fields, path, "use_regex", false);
  }

  bool read_model(element value) {
    object model;
    if (!open(value, "model",
              {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
               "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"},
              &model)) {
      return false;
    }
    element vocab, merges;
    return need_text(model, "model", "type", "BPE") &&
           need_null(model, "model", "dropout", false) &&
           need_null(model, "model", "unk_token", false) &&
           need_null(model, "model", "continuing_subword_prefix", true) &&
           need_null(model, "model", "end_of_word_suffix", true) &&
           need_bool(model, "model", "byte_fallback", false) &&
           need_bool(model, "model", "ignore_merges", false) &&
           need(model, "model", "vocab", &vocab) && read_vocab(vocab) &&
           need(model, "model", "merges", &merges) && read_merges(merges);
  }

  bool read_id(element value, const std::string& path, TokenId* id) {
    int64_t number = 0;
    if (value.get(number) != simdjson::SUCCESS || number < 0 ||
        number >= kTokenizerVocabMaxTokens) {
      return damaged(path, "a token id from 0 to " + std::to_string(kTokenizerVocabMaxTokens - 1) +
                               " expected, found " + shown(value));
    }
    *id = static_cast<TokenId>(number);
    if (static_cast<size_t>(number) >= tables_.bytes.size()) {
      tables_.bytes.resize(static_cast<size_t>(number) + 1);
    }
    return true;
  }

  bool read_vocab(element value) {
    object vocab;
    if (value.get(vocab) != simdjson::SUCCESS) return damaged("model.vocab", "an object expected");
    ids_.reserve(vocab.size());
    for (const auto field : vocab) {
      const std::string path = "model.vocab['" + utf8_lossy(field.key) + "']";
      TokenId id = 0;
      if (field.key.empty()) return damaged("model.vocab", "an empty token");
      if (!read_id(field.value, path, &id)) return false;
      std::string& bytes = tables_.bytes[static_cast<size_t>(id)];
      if (!bytes.empty()) return damaged(path, "two tokens have the id " + std::to_string(id));
      if (!ids_.emplace(field.key, id).second) return damaged(path, "the token is there twice");
      bytes = alphabet_.bytes_of(field.key);
    }
    return true;
  }

  // A merge is "left right" in one string, or a list of two.
  bool merge_parts(element value, const std::string& path, std::string_view* left,
                   std::string_view* right) {
    std::string_view text;
    if (value.get(text) == simdjson::SUCCESS) {
      const size_t space = text.find(' ');
      if (space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos) {
        *left = text.substr(0, space);
        *right = text.substr(space + 1);
        return true;
      }
    }
    array pair;
    if (value.get(pair) == simdjson::SUCCESS && pair.size() == 2 &&
        pair.at(0).get(*left) == simdjson::SUCCESS && pair.at(1).get(*right) == simdjson::SUCCESS) {
      return true;
    }
    return damaged(path, "two tokens expected, found " + shown(value));
  }

  bool token_named(std::string_view text, const std::string& path, TokenId* id) {
    const auto it = ids_.find(text);
    if (it == ids_.end()) {
      return damaged(
          path, "'" + utf8_lossy(text.substr(0, kMessageTextMaxBytes)) + "' is not in model.vocab");
    }
    *id = it->second;
    return true;
  }

  bool read_merges(element value) {
    array merges;
    if (value.get(merges) != simdjson::SUCCESS) return damaged("model.merges", "a list expected");
    std::string joined;
    size_t i = 0;
    for (const element item : merges) {
      const std::string path = "model.merges[" + std::to_string(i++) + "]";
      std::string_view left, right;
      BpeMerge merge;
      if (!merge_parts(item, path, &left, &right)) return false;
      joined.assign(left).append(right);
      if (!token_named(left, path, &merge.left) || !token_named(right, path, &merge.right) ||
          !token_named(joined, path, &merge.result)) {
        return false;
      }
      tables_.merges.push_back(merge);
    }
    return true;
  }

  bool check_bytes() {
    for (unsigned byte = 0; byte < 256; ++byte) {
      const auto it = ids_.find(alphabet_.spelling(byte));
      if (it == ids_.end()) {
        return refuse("model.vocab", "no token for byte " + std::to_string(byte) + " ('" +
                                         alphabet_.spelling(byte) + "')");
      }
      tables_.byte_tokens[byte] = it->second;
    }
    return true;
  }

  bool read_flag(object from, const std::string& path, std::string_view key, bool* out) {
    element value;
    if (!get(from, key, &value)) return true;
    return value.get(*out) == simdjson::SUCCESS ||
           damaged(join(path, key), "true or false expected, found " + shown(value));
  }

  bool read_added(element value) {
    array list;
    if (value.is_null()) return true;
    if (value.get(list) != simdjson::SUCCESS) return damaged("added_tokens", "a list expected");
    size_t i = 0;
    for (const element item : list) {
      if (!read_added_token(item, "added_tokens[" + std::to_string(i++) + "]")) return false;
    }
    std::sort(tables_.added.begin(), tables_.added.end(),
              [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
    return true;
  }

  bool read_added_token(element value, const std::string& path) {
    object fields;
    if (!open(value, path,
              {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"},
              &fields)) {
      return false;
    }
    element id, content;
    std::string_view text;
    AddedToken token;
    if (!need(fields, path, "id", &id) || !read_id(id, path + ".id", &token.id)) return false;
    if (!need(fields, path, "content", &content)) return false;
    if (content.get(text) != simdjson::SUCCESS || text.empty() ||
        text.size() > kAddedTokenMaxBytes) {
      return damaged(path + ".content", "a text of 1 to " + std::to_string(kAddedTokenMaxBytes) +
                                            " bytes expected, found " + shown(content));
    }
    token.content = text;
    for (const std::string_view flag : {"single_word", "lstrip", "rstrip"}) {
      if (!need_bool(fields, path, flag, false)) return false;
    }
    if (!read_flag(fields, path, "special", &token.special)) return false;
    token.normalized = !token.special;
    if (!read_flag(fields, path, "normalized", &token.normalized)) return false;
    return put_added_token(std::move(token), path);
  }

  bool put_added_token(AddedToken token, const std::string& path) {
    std::string& bytes = tables_.bytes[static_cast<size_t>(token.id)];
    const auto known = ids_.find(token.content);
    const bool in_vocab = known != ids_.end();
    if (in_vocab && known->second != token.id) {
      return damaged(path + ".id",
                     "model.vocab has this token as " + std::to_string(known->second));
    }
    if (!added_contents_.insert(token.content).second) {
      return damaged(path + ".content", "the token is there twice");
    }
    if (!in_vocab && !bytes.empty()) {
      return damaged(path + ".id", "the id " + std::to_string(token.id) + " is taken");
    }
    bytes = token.content;
    tables_.added.push_back(std::move(token));
    return true;
  }

  std::string_view where_;
  Status status_;
  TokenizerTables tables_;
  ByteAlphabet alphabet_;
  std::unordered_map<std::string_view, TokenId> ids_;  // of model.vocab
  std::unordered_set<std::string> added_contents_;
};

}  // namespace

Result<TokenizerTables> parse_tokenizer_file(std::string_view json, std::string_view where) {
  if (json.size() > kTokenizerFileMaxBytes) {
    return data_loss(std::string(where) + ": larger than " +
                     std::to_string(kTokenizerFileMaxBytes >> 20) + " MiB");
  }
  return FileReader(where).read(json);
}

}  // namespace tensorfold
