#include "engine/text/added_tokens.h"

#include <algorithm>

#include "engine/base/check.h"

namespace tensorfold {

void AddedTokenMatcher::add(std::string_view content, TokenId id) {
  TF_CHECK(!content.empty());
  uint32_t node = 0;
  for (const char c : content) {
    const auto byte = static_cast<unsigned char>(c);
    const auto next = static_cast<uint32_t>(nodes_.size());
    const auto [it, added] = edges_.emplace(edge(node, byte), next);
    if (added) nodes_.emplace_back();
    nodes_[node].has_children = true;
    node = it->second;
  }
  nodes_[node].id = id;
  starts_[static_cast<unsigned char>(content.front())] = true;
}

AddedTokenMatcher::Match AddedTokenMatcher::longest_at(std::string_view text, size_t at, size_t to,
                                                       uint64_t* steps) const {
  Match best;
  uint32_t node = 0;
  for (size_t i = at; i < to && nodes_[node].has_children; ++i) {
    ++*steps;
    const auto it = edges_.find(edge(node, static_cast<unsigned char>(text[i])));
    if (it == edges_.end()) break;
    node = it->second;
    if (nodes_[node].id >= 0) best = {at, i + 1, nodes_[node].id};
  }
  return best;
}

AddedTokenMatcher::Match AddedTokenMatcher::find(std::string_view text, size_t from, size_t to,
                                                 std::span<const TextSpan> plain,
                                                 uint64_t* steps) const {
  if (empty()) return {};
  // The first plain span that ends after `at`.
  auto span = static_cast<size_t>(
      std::partition_point(plain.begin(), plain.end(),
                           [from](const TextSpan& s) { return s.end <= from; }) -
      plain.begin());
  for (size_t at = from; at < to; ++at) {
    while (span < plain.size() && plain[span].end <= at) ++span;
    size_t limit = to;  // a match may not reach into the next plain span
    if (span < plain.size()) {
      if (plain[span].begin <= at) {
        at = std::min(plain[span].end, to) - 1;
        continue;
      }
      limit = std::min(limit, plain[span].begin);
    }
    if (!starts_[static_cast<unsigned char>(text[at])]) continue;
    const Match match = longest_at(text, at, limit, steps);
    if (match.id >= 0) return match;
  }
  return {};
}

}  // namespace tensorfold
