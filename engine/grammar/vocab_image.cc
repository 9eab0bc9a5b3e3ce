// Builds the token tries and the masks of plain text.
#include "engine/grammar/vocab_image.h"

#include <algorithm>
#include <string_view>

#include "engine/base/utf8.h"
#include "engine/text/tokenizer.h"

namespace tensorfold::grammar {
namespace {

constexpr uint32_t kSafeCharsMax = 256;  // longer tokens are left to the walk

bool safe_text(std::string_view bytes, uint32_t& chars) {
  chars = 0;
  for (size_t i = 0; i < bytes.size();) {
    const auto b = static_cast<uint8_t>(bytes[i]);
    if (b < 0x20 || b == '"' || b == '\\') return false;
    const Utf8Step step = utf8_step(bytes, i);
    if (!step.valid) return false;
    i += step.bytes;
    ++chars;
  }
  return chars <= kSafeCharsMax;
}

void set_bit(std::vector<uint32_t>& bits, int32_t id) {
  bits[static_cast<size_t>(id) / 32] |= uint32_t{1} << (static_cast<uint32_t>(id) % 32);
}

}  // namespace

TokenTrie::TokenTrie(std::vector<std::pair<std::string_view, int32_t>> sorted) {
  std::sort(sorted.begin(), sorted.end());
  nodes_.push_back({});
  std::vector<uint32_t> open = {0};  // the path to the last node, by depth
  std::string_view last;
  for (const auto& [bytes, id] : sorted) {
    size_t shared = 0;
    while (shared < last.size() && shared < bytes.size() && last[shared] == bytes[shared]) ++shared;
    while (open.size() > shared + 1) {
      nodes_[open.back()].end = static_cast<uint32_t>(nodes_.size());
      open.pop_back();
    }
    for (size_t d = shared; d < bytes.size(); ++d) {
      Node node;
      node.byte = static_cast<uint8_t>(bytes[d]);
      node.depth = static_cast<uint16_t>(d + 1);
      node.token_begin = node.token_end = static_cast<uint32_t>(tokens_.size());
      open.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back(node);
    }
    tokens_.push_back(id);
    nodes_[open.back()].token_end = static_cast<uint32_t>(tokens_.size());
    last = bytes;
  }
  for (const uint32_t n : open) nodes_[n].end = static_cast<uint32_t>(nodes_.size());
}

void TokenTrie::path(uint32_t node, std::string& out) const {
  const size_t first = out.size();
  uint16_t want = nodes_[node].depth;
  out.resize(first + want);
  // Walking backwards in walk order, the first node of each smaller depth is the ancestor.
  for (uint32_t i = node; want > 0; --i) {
    if (nodes_[i].depth != want) continue;
    out[first + want - 1] = static_cast<char>(nodes_[i].byte);
    --want;
  }
}

Result<std::shared_ptr<const VocabImage>> VocabImage::build(VocabSpec spec) {
  if (spec.mask_tokens <= 0 || spec.mask_tokens > kVocabMaxTokens ||
      spec.bytes.size() > static_cast<size_t>(spec.mask_tokens)) {
    return invalid_argument("vocabulary of " + std::to_string(spec.bytes.size()) +
                            " tokens for a mask of " + std::to_string(spec.mask_tokens));
  }
  auto image = std::make_shared<VocabImage>();
  image->spec_ = std::move(spec);
  const VocabSpec& s = image->spec_;
  const size_t words = image->words();
  std::vector<std::pair<std::string_view, int32_t>> all, rest;
  std::vector<std::pair<uint32_t, int32_t>> safe;
  image->ordinary_.assign(words, 0);
  uint32_t longest = 1;
  for (size_t i = 0; i < s.bytes.size(); ++i) {
    const std::string& bytes = s.bytes[i];
    if (bytes.empty()) continue;
    if (bytes.size() > kTokenMaxBytes) {
      return invalid_argument("token " + std::to_string(i) + " is longer than " +
                              std::to_string(kTokenMaxBytes) + " bytes");
    }
    const auto id = static_cast<int32_t>(i);
    set_bit(image->ordinary_, id);
    all.emplace_back(bytes, id);
    uint32_t chars = 0;
    if (safe_text(bytes, chars)) {
      safe.emplace_back(chars, id);
      longest = std::max(longest, chars);
    } else {
      rest.emplace_back(bytes, id);
    }
  }
  std::sort(safe.begin(), safe.end());
  std::vector<uint32_t> bits(words, 0);
  size_t next = 0;
  for (uint32_t chars = 0; chars <= longest; ++chars) {
    while (next < safe.size() && safe[next].first <= chars) set_bit(bits, safe[next++].second);
    image->safe_.push_back(bits);
  }
  image->all_ = std::make_unique<TokenTrie>(std::move(all));
  image->rest_ = std::make_unique<TokenTrie>(std::move(rest));
  return std::shared_ptr<const VocabImage>(std::move(image));
}

Result<std::shared_ptr<const VocabImage>> VocabImage::from_tokenizer(const Tokenizer& tokenizer,
                                                                     int32_t mask_tokens,
                                                                     std::vector<int32_t> end_ids) {
  VocabSpec spec;
  spec.mask_tokens = std::max(mask_tokens, tokenizer.vocab_size());
  spec.end_ids = std::move(end_ids);
  spec.think_end_id = tokenizer.id_of("</think>").value_or(-1);
  spec.tool_marker_id = tokenizer.id_of("｜DSML｜").value_or(-1);
  spec.bytes.resize(static_cast<size_t>(tokenizer.vocab_size()));
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.is_added(id))
      spec.bytes[static_cast<size_t>(id)] = std::string(tokenizer.token_bytes(id));
  }
  return build(std::move(spec));
}

const std::vector<uint32_t>& VocabImage::safe(uint32_t chars) const {
  return safe_[std::min<size_t>(chars, safe_.size() - 1)];
}

}  // namespace tensorfold::grammar
