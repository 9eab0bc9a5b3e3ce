// Token masks of a program over a vocabulary: the MaskSource of every compiled constraint.
//
// A state is a configuration's id. A mask is put together from pieces (mask_walk.h) that are
// remembered within a byte bound; what is forgotten is computed again. One mutex guards the arena:
// calls from several threads are safe and take turns.
#pragma once

#include <memory>

#include "engine/grammar/mask_source.h"
#include "engine/grammar/program.h"
#include "engine/grammar/vocab_image.h"

namespace tensorfold::grammar {

class Matcher : public MaskSource {
 public:
  static std::shared_ptr<Matcher> create(std::shared_ptr<const Program> program,
                                         std::shared_ptr<const VocabImage> vocab);
  // The state after a piece of text that ends anywhere (for checks without a vocabulary).
  virtual MaskState next_text(MaskState state, std::string_view text, size_t* refused_at) const = 0;
  virtual bool accepts(MaskState state) const = 0;  // the reply may end here
  virtual size_t memory_bytes() const = 0;
};

}  // namespace tensorfold::grammar
