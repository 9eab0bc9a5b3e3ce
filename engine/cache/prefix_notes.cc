// Names of entries (see prefix_notes.h).
#include "engine/cache/prefix_notes.h"

namespace tensorfold {

CacheNote block_note(const PrefixNode& node) {
  CacheNote note;
  note.kind = CacheNote::Kind::kBlock;
  note.name = node.name;
  note.before = node.parent->name;
  note.first_position = node.end - kBlockPositions;
  note.positions = kBlockPositions;
  note.generated = node.text.generated;
  note.images = node.text.images;
  return note;
}

CacheNote tail_note(const PrefixSnapshot& s) {
  CacheNote note;
  note.kind = CacheNote::Kind::kBlock;
  note.name = s.name;
  note.before = s.at->name;
  note.first_position = s.at->end;
  note.positions = static_cast<int32_t>(s.tail.ids.size());
  note.generated = s.tail.generated;
  note.images = s.tail.images;
  return note;
}

CacheNote rings_note(const PrefixSnapshot& s) {
  CacheNote note = s.tail_block >= 0 ? tail_note(s) : block_note(*s.at);
  note.kind = s.full ? CacheNote::Kind::kFullSnapshot : CacheNote::Kind::kEncoderSnapshot;
  note.cut_low = s.full ? s.cut_low : 0;
  note.generated = {};
  note.images.clear();
  return note;
}

const PrefixNode& root_of(const PrefixNode& node) {
  const PrefixNode* n = &node;
  while (n->parent != nullptr) n = n->parent;
  return *n;
}

}  // namespace tensorfold
