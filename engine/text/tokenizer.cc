#include "engine/text/tokenizer.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <mutex>
#include <unordered_map>

#include "engine/text/added_tokens.h"
#include "engine/text/bpe.h"
#include "engine/text/pretokenizer.h"
#include "engine/text/tokenizer_file.h"

namespace tensorfold {
namespace {

constexpr size_t kCacheEntries = size_t{1} << 14;  // a power of two; 64 bytes each
constexpr size_t kCachedPieceMaxBytes = 22;
constexpr size_t kCachedPieceMaxTokens = 8;
constexpr size_t kSpareCachesMax = 8;  // kept between calls: one per concurrent caller

// Direct-mapped memory of recent pieces and their tokens. What it holds never changes a result.
class PieceCache {
 public:
  struct Entry {
    uint8_t bytes = 0, tokens = 0;
    char piece[kCachedPieceMaxBytes];
    TokenId ids[kCachedPieceMaxTokens];
    bool holds(std::string_view text) const {
      return bytes == text.size() && std::memcmp(piece, text.data(), text.size()) == 0;
    }
  };
  Entry& slot(std::string_view text) { return entries_[hash(text) & (kCacheEntries - 1)]; }

 private:
  static uint64_t hash(std::string_view text) {
    uint64_t h = text.size();
    for (size_t at = 0; at < text.size(); at += 8) {
      uint64_t word = 0;
      std::memcpy(&word, text.data() + at, std::min<size_t>(8, text.size() - at));
      h = (h ^ word) * 0x9E3779B97F4A7C15ull;
      h ^= h >> 32;
    }
    return h;
  }
  std::vector<Entry> entries_{kCacheEntries};
};

class TokenizerImpl final : public Tokenizer {
 public:
  explicit TokenizerImpl(TokenizerTables tables)
      : bytes_(std::move(tables.bytes)),
        added_(std::move(tables.added)),
        bpe_(tables.byte_tokens, tables.merges) {
    is_added_.resize(bytes_.size());
    for (const AddedToken& token : added_) {
      matchers_[token.normalized ? 1 : 0].add(token.content, token.id);
      ids_.emplace(token.content, token.id);
      is_added_[static_cast<size_t>(token.id)] = true;
    }
  }

  std::vector<TokenId> encode(std::string_view text, std::span<const TextSpan> plain,
                              uint64_t* steps) const override {
    uint64_t unwanted = 0;
    Call call{text, plain, steps != nullptr ? steps : &unwanted, take_cache(), {}};
    call.out.reserve(text.size() / 4 + 1);
    encode_range(call, 0, text.size(), 0);
    give_back(std::move(call.cache));
    return std::move(call.out);
  }

  std::string_view token_bytes(TokenId id) const override {
    return known(id) ? std::string_view(bytes_[static_cast<size_t>(id)]) : std::string_view();
  }
  std::optional<TokenId> id_of(std::string_view content) const override {
    const auto it = ids_.find(content);
    if (it == ids_.end()) return std::nullopt;
    return it->second;
  }
  bool is_added(TokenId id) const override {
    return known(id) && is_added_[static_cast<size_t>(id)];
  }
  std::span<const AddedToken> added_tokens() const override { return added_; }
  int vocab_size() const override { return static_cast<int>(bytes_.size()); }

 private:
  struct Call {
    std::string_view text;
    std::span<const TextSpan> plain;
    uint64_t* steps;
    std::unique_ptr<PieceCache> cache;
    std::vector<TokenId> out;
  };

  bool known(TokenId id) const { return id >= 0 && static_cast<size_t>(id) < bytes_.size(); }

  // Cuts out the added tokens of matcher `phase`, then of the next, then tokenizes what is left.
  void encode_range(Call& call, size_t from, size_t to, size_t phase) const {
    if (phase == matchers_.size()) {
      encode_text(call, call.text.substr(from, to - from));
      return;
    }
    while (from < to) {
      const auto match = matchers_[phase].find(call.text, from, to, call.plain, call.steps);
      if (match.id < 0) break;
      if (match.begin > from) encode_range(call, from, match.begin, phase + 1);
      call.out.push_back(match.id);
      from = match.end;
    }
    if (from < to) encode_range(call, from, to, phase + 1);
  }

  void encode_text(Call& call, std::string_view text) const {
    Pretokenizer pieces(text);
    std::string_view piece;
    *call.steps += text.size();
    while (pieces.next(&piece)) encode_piece(call, piece);
  }

  void encode_piece(Call& call, std::string_view piece) const {
    if (piece.size() > kCachedPieceMaxBytes) {
      bpe_.encode(piece, call.out, call.steps);
      return;
    }
    PieceCache::Entry& entry = call.cache->slot(piece);
    if (entry.holds(piece)) {
      call.out.insert(call.out.end(), entry.ids, entry.ids + entry.tokens);
      return;
    }
    const size_t before = call.out.size();
    bpe_.encode(piece, call.out, call.steps);
    const size_t count = call.out.size() - before;
    if (count > kCachedPieceMaxTokens) return;
    entry.bytes = static_cast<uint8_t>(piece.size());
    entry.tokens = static_cast<uint8_t>(count);
    std::memcpy(entry.piece, piece.data(), piece.size());
    std::memcpy(entry.ids, call.out.data() + before, count * sizeof(TokenId));
  }

  std::unique_ptr<PieceCache> take_cache() const {
    {
      std::lock_guard lock(spare_mutex_);
      if (!spare_caches_.empty()) {
        auto cache = std::move(spare_caches_.back());
        spare_caches_.pop_back();
        return cache;
      }
    }
    return std::make_unique<PieceCache>();
  }
  void give_back(std::unique_ptr<PieceCache> cache) const {
    std::lock_guard lock(spare_mutex_);
    if (spare_caches_.size() < kSpareCachesMax) spare_caches_.push_back(std::move(cache));
  }

  std::vector<std::string> bytes_;
  std::vector<AddedToken> added_;
  Bpe bpe_;
  std::array<AddedTokenMatcher, 2> matchers_;          // tokens that are not normalized go first
  std::unordered_map<std::string_view, TokenId> ids_;  // views into added_
  std::vector<bool> is_added_;
  mutable std::mutex spare_mutex_;
  mutable std::vector<std::unique_ptr<PieceCache>> spare_caches_;
};

}  // namespace

std::string Tokenizer::decode(std::span<const TokenId> ids) const {
  std::string out;
  for (const TokenId id : ids) out += token_bytes(id);
  return out;
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::parse(std::string_view json, std::string_view where) {
  Result<TokenizerTables> tables = parse_tokenizer_file(json, where);
  if (!tables.ok()) return tables.status();
  return std::unique_ptr<Tokenizer>(std::make_unique<TokenizerImpl>(std::move(*tables)));
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::load(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return io_error(path, errno);
  const auto size = static_cast<std::streamoff>(file.tellg());
  if (size < 0) return io_error(path, EIO);
  if (static_cast<size_t>(size) > kTokenizerFileMaxBytes) {
    return data_loss(path + ": larger than " + std::to_string(kTokenizerFileMaxBytes >> 20) +
                     " MiB");
  }
  std::string json(static_cast<size_t>(size), '\0');
  file.seekg(0);
  if (!file.read(json.data(), size)) return io_error(path, EIO);
  return parse(json, path);
}

}  // namespace tensorfold
