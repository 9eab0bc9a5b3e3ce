// What entries of the prefix index are called: the notes that plans and files carry for them. Pure.
#pragma once

#include "engine/cache/prefix_tree.h"

namespace tensorfold {

CacheNote block_note(const PrefixNode& node);   // of a whole block; not of a root
CacheNote tail_note(const PrefixSnapshot& s);   // of the partial block that it ends in
CacheNote rings_note(const PrefixSnapshot& s);  // of the snapshot itself
const PrefixNode& root_of(const PrefixNode& node);

}  // namespace tensorfold
