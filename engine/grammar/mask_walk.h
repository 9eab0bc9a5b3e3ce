// The mask of one thread: which tokens keep it alive.
//
// Text and numbers are split in two: what stays inside depends only on the automaton's state (kept
// as an "inner" result, shared by every place with that state), and the few tokens that leave it
// are followed from the trie nodes where it ends. Everything else is walked frame by frame.
// Not thread-safe; belongs to a Matcher.
#pragma once

#include <bitset>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/grammar/frames.h"
#include "engine/grammar/vocab_image.h"

namespace tensorfold::grammar {

inline constexpr size_t kInnerKeptMax = 1024;  // inner results of one matcher

inline void set_token(std::span<uint32_t> bits, int32_t id) {
  bits[static_cast<size_t>(id) / 32] |= uint32_t{1} << (static_cast<uint32_t>(id) % 32);
}

class MaskWalk {
 public:
  MaskWalk(Frames& frames, const VocabImage& vocab);
  void mask(FrameId id, std::span<uint32_t> bits);
  FrameId canonical(FrameId id);
  size_t bytes() const { return inner_.size() * (vocab_.words() * 4 + 256); }

 private:
  struct Exit {
    uint32_t node;
    std::string path;
  };
  struct Inner {
    std::vector<uint32_t> bits;
    std::vector<Exit> exits;
    const TokenTrie* trie = nullptr;
  };
  using Bytes = std::bitset<256>;

  void text_mask(const Frame& f, std::span<uint32_t> bits);
  void key_mask(FrameId id, std::span<uint32_t> bits);
  void raw_mask(const Frame& f, std::span<uint32_t> bits);
  const Inner& text_inner(const TextSpec& spec, const Frame& f);
  const Inner& raw_inner(const Dfa& dfa, const TextSpec* spec, const Frame& f, const Bytes& first);
  void walk_below(const TokenTrie& trie, uint32_t root, const FrameSet& from,
                  std::span<uint32_t> bits);
  Bytes first_bytes(const FrameSet& set) const;
  bool is_total(const Dfa& dfa);
  Inner& remember(const std::string& key);

  Frames& frames_;
  const VocabImage& vocab_;
  uint32_t longest_ = 1;  // bytes of the longest token
  TextSpec any_text_;
  std::unordered_map<std::string, std::unique_ptr<Inner>> inner_;
  std::unordered_map<const Dfa*, bool> total_;
  std::vector<FrameSet> levels_;
};

}  // namespace tensorfold::grammar
