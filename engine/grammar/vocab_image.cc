// Builds the token trees, classes and the masks of plain text.
#include "engine/grammar/vocab_image.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "engine/base/utf8.h"
#include "engine/grammar/frames.h"
#include "engine/text/tokenizer.h"

namespace tensorfold::grammar {
namespace {

constexpr uint32_t kSafeCharsMax = 256;  // longer tokens are left to the walk
constexpr size_t kClassTokensMin = 32;   // smaller classes are thrown together
constexpr size_t kClassSparseMax = 768;  // ids; larger classes are kept as bits
constexpr size_t kRareShortBytes = 16;   // longer ones are kept apart

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

uint32_t kinds_of(std::string_view bytes) {
  uint32_t kinds = 0;
  for (size_t i = 0; i < bytes.size();) {
    const auto b = static_cast<uint8_t>(bytes[i]);
    const Utf8Step step = utf8_step(bytes, i);
    if (!step.valid) return kinds | (1U << kBroken);
    kinds |= 1U << (b < 0x80 ? ascii_kind(b) : beyond_kind(b));
    i += step.bytes;
  }
  return kinds;
}

// Letters, digits, space, common marks, other marks, beyond ASCII.
uint32_t rough_kinds(uint32_t kinds) {
  constexpr uint32_t kGroups[] = {
      1U << kHexLower | 1U << kRestLower | 1U << kHexUpper | 1U << kRestUpper,
      1U << kDigit,
      1U << kSpace,
      1U << kUnderscore | 1U << kMinus | 1U << kDot | 1U << kSlash,
      1U << kComma | 1U << kColonKind | 1U << kAt | 1U << kOtherPunct | 1U << kControl,
      kAnyBeyond};
  uint32_t rough = 0;
  for (size_t i = 0; i < std::size(kGroups); ++i) rough |= (kinds & kGroups[i]) != 0 ? 1U << i : 0U;
  return rough;
}

bool is_json_space(uint8_t b) { return b == ' ' || b == '\t' || b == '\n' || b == '\r'; }

uint32_t longest_space_in(std::string_view bytes) {
  uint32_t longest = 0, run = 0;
  for (const char c : bytes) {
    run = is_json_space(static_cast<uint8_t>(c)) ? run + 1 : 0;
    longest = std::max(longest, run);
  }
  return longest;
}

void set_bit(std::vector<uint32_t>& bits, int32_t id) {
  bits[static_cast<size_t>(id) / 32] |= uint32_t{1} << (static_cast<uint32_t>(id) % 32);
}

}  // namespace

ByteKind ascii_kind(uint8_t b) {
  if (b < 0x20 || b >= 0x7F) return kControl;
  if (b >= 'a' && b <= 'z') return b <= 'f' ? kHexLower : kRestLower;
  if (b >= 'A' && b <= 'Z') return b <= 'F' ? kHexUpper : kRestUpper;
  if (b >= '0' && b <= '9') return kDigit;
  switch (b) {
    case ' ':
      return kSpace;
    case '_':
      return kUnderscore;
    case '-':
      return kMinus;
    case '.':
      return kDot;
    case '/':
      return kSlash;
    case ',':
      return kComma;
    case ':':
      return kColonKind;
    case '@':
      return kAt;
    case '"':
      return kQuote;
    case '\\':
      return kBackslash;
    default:
      return kOtherPunct;
  }
}

ByteKind beyond_kind(uint8_t first) {
  const bool space =
      first == 0xC2 || first == 0xE1 || first == 0xE2 || first == 0xE3 || first == 0xEF;
  return space ? kBeyondSpace : kBeyond;
}

uint32_t TokenForest::add(Pairs sorted) {
  std::sort(sorted.begin(), sorted.end());
  const auto root = static_cast<uint32_t>(nodes_.size());
  nodes_.push_back({});
  std::vector<uint32_t> open = {root};  // the path to the last node, by depth
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
      const Node& above = nodes_[open.back()];
      node.lead = above.lead;
      if (above.lead == above.depth && is_json_space(node.byte) && node.lead < UINT8_MAX)
        ++node.lead;
      node.token_begin = node.token_end = static_cast<uint32_t>(tokens_.size());
      open.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back(node);
    }
    tokens_.push_back(id);
    nodes_[open.back()].token_end = static_cast<uint32_t>(tokens_.size());
    last = bytes;
  }
  for (const uint32_t n : open) nodes_[n].end = static_cast<uint32_t>(nodes_.size());
  return root;
}

void TokenForest::index_children() {
  child_begin_.assign(nodes_.size() + 1, 0);
  children_.clear();
  for (uint32_t n = 0; n < nodes_.size(); ++n) {
    child_begin_[n] = static_cast<uint32_t>(children_.size());
    for (uint32_t c = n + 1; c < nodes_[n].end; c = nodes_[c].end) {
      children_.push_back(c);
      child_bytes_.push_back(nodes_[c].byte);
    }
  }
  child_begin_.back() = static_cast<uint32_t>(children_.size());
}

size_t TokenForest::memory_bytes() const {
  return nodes_.size() * sizeof(Node) + tokens_.size() * sizeof(int32_t) +
         child_begin_.size() * sizeof(uint32_t) +
         children_.size() * (sizeof(uint32_t) + sizeof(uint8_t));
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
  TokenForest::Pairs all, rest, quotes;
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
    image->longest_bytes_ = std::max(image->longest_bytes_, static_cast<uint32_t>(bytes.size()));
    image->longest_space_ = std::max(image->longest_space_, longest_space_in(bytes));
    all.emplace_back(bytes, id);
    if (bytes.find('"') != std::string::npos) quotes.emplace_back(bytes, id);
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
  image->all_root_ = image->forest_.add(std::move(all));
  image->rest_root_ = image->forest_.add(std::move(rest));
  image->quote_root_ = image->forest_.add(std::move(quotes));
  image->add_classes();
  image->forest_.index_children();
  image->add_leads();
  image->add_plain();
  return std::shared_ptr<const VocabImage>(std::move(image));
}

void VocabImage::add_class(uint8_t lead, uint32_t kinds, bool mixed, TokenForest::Pairs tokens) {
  TokenClass c;
  c.lead = lead;
  c.kinds = kinds;
  c.mixed = mixed;
  c.min_bytes = c.min_chars = UINT32_MAX;
  if (tokens.size() > kClassSparseMax) c.dense.assign(words(), 0);
  for (const auto& [bytes, id] : tokens) {
    c.min_bytes = std::min(c.min_bytes, static_cast<uint32_t>(bytes.size()));
    c.max_bytes = std::max(c.max_bytes, static_cast<uint32_t>(bytes.size()));
    const auto chars = static_cast<uint32_t>(std::count_if(bytes.begin(), bytes.end(), [](char b) {
      return (static_cast<uint8_t>(b) & 0xC0U) != 0x80U;
    }));
    c.min_chars = std::min(c.min_chars, chars);
    c.max_chars = std::max(c.max_chars, chars);
    if (c.dense.empty()) {
      c.sparse.push_back(id);
    } else {
      set_bit(c.dense, id);
    }
  }
  c.root = forest_.add(std::move(tokens));
  c.nodes = forest_.nodes()[c.root].end - c.root;
  classes_.push_back(std::move(c));
}

void VocabImage::add_classes() {
  // By lead and kinds, then by length.
  std::map<std::pair<size_t, uint32_t>, std::map<size_t, TokenForest::Pairs>> groups;
  for (size_t i = 0; i < spec_.bytes.size(); ++i) {
    const std::string_view bytes = spec_.bytes[i];
    if (bytes.empty() || !is_safe(static_cast<int32_t>(i))) continue;
    const auto* const lead = std::find(std::begin(kTokenLeads) + 1, std::end(kTokenLeads),
                                       static_cast<uint8_t>(bytes[0]));
    const bool led = lead != std::end(kTokenLeads) && bytes.size() > 1;
    const auto which = led ? static_cast<size_t>(lead - std::begin(kTokenLeads)) : 0;
    groups[{which, kinds_of(bytes.substr(led ? 1 : 0))}][bytes.size()].emplace_back(
        bytes, static_cast<int32_t>(i));
  }
  // Rare kinds are put together by what they have roughly in common.
  std::map<std::pair<uint32_t, bool>, std::pair<uint32_t, TokenForest::Pairs>> rare;
  for (auto& [key, lengths] : groups) {
    // Neighboring lengths are joined until there are enough for a class.
    TokenForest::Pairs band;
    for (auto& [bytes, tokens] : lengths) {
      band.insert(band.end(), tokens.begin(), tokens.end());
      if (band.size() < kClassTokensMin) continue;
      add_class(kTokenLeads[key.first], key.second, false, std::move(band));
      band.clear();
    }
    for (const auto& token : band) {
      const uint32_t kinds = kinds_of(token.first);
      auto& [together, tokens] = rare[{rough_kinds(kinds), token.first.size() > kRareShortBytes}];
      together |= kinds;
      tokens.push_back(token);
    }
  }
  for (auto& [key, group] : rare) add_class(0, group.first, true, std::move(group.second));
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

void VocabImage::add_leads() {
  leads_.assign(spec_.bytes.size(), 0);
  led_by_space_.assign(words(), 0);
  for (size_t i = 0; i < leads_.size(); ++i) {
    const std::string& bytes = spec_.bytes[i];
    size_t lead = 0;
    while (lead < bytes.size() && is_json_space(static_cast<uint8_t>(bytes[lead]))) ++lead;
    leads_[i] = static_cast<uint8_t>(std::min<size_t>(lead, UINT8_MAX));
    if (lead > 0) set_bit(led_by_space_, static_cast<int32_t>(i));
    if (lead > 1) long_leads_.push_back(static_cast<int32_t>(i));
  }
  std::sort(long_leads_.begin(), long_leads_.end(),
            [this](int32_t a, int32_t b) { return lead_of(a) > lead_of(b); });
}

void VocabImage::add_plain() {
  const std::vector<TokenForest::Node>& nodes = forest_.nodes();
  std::vector<TextState> path(longest_bytes_ + 1);
  for (const bool key : {false, true}) {
    for (const bool empty : {false, true}) {
      TextSpec spec;
      spec.dfa = dfa_universal();
      spec.min = empty ? 0 : 1;
      spec.key = key;
      PlainText& plain = plain_[(key ? 2U : 0U) + (empty ? 1U : 0U)];
      plain.bits = safe_.back();
      path[0] = {spec.dfa->start, 0, 0};
      for (uint32_t i = rest_root_ + 1; i < nodes[rest_root_].end;) {
        TextState& s = path[nodes[i].depth];
        s = path[nodes[i].depth - 1U];
        const TextStep step = Frames::text_step(spec, s, nodes[i].byte);
        if (step == TextStep::kClosed) plain.exits.push_back(i);
        if (step != TextStep::kLive) {
          i = nodes[i].end;
          continue;
        }
        for (uint32_t t = nodes[i].token_begin; t < nodes[i].token_end; ++t)
          set_bit(plain.bits, forest_.tokens()[t]);
        ++i;
      }
    }
  }
}

size_t VocabImage::memory_bytes() const {
  size_t total = forest_.memory_bytes() + leads_.size() + 4 * long_leads_.size();
  for (const PlainText& p : plain_) total += (p.bits.size() + p.exits.size()) * sizeof(uint32_t);
  total += safe_.size() * words() * sizeof(uint32_t);
  for (const TokenClass& c : classes_)
    total += (c.dense.size() + c.sparse.size()) * sizeof(uint32_t);
  for (const std::string& b : spec_.bytes) total += sizeof(std::string) + b.capacity();
  return total;
}

}  // namespace tensorfold::grammar
