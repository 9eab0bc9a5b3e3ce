// Measures the grammar engine over a folder of schemas with instances (tfctl grammar bench).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/base/json.h"
#include "engine/grammar/vocab_image.h"
#include "engine/text/tokenizer.h"

namespace tensorfold::ctl {

// Every figure in microseconds, unsorted.
struct GrammarBench {
  std::vector<std::string> passed, unsupported, valid_rejected, invalid_accepted;
  std::vector<std::string> reasons;  // of unsupported, in the same order
  std::vector<double> warm_mask_us;
  std::vector<double> mask_us, window_us, compile_us;
  std::string slowest_mask, slowest_compile;  // whose: names of schemas
  double slowest_mask_us = 0, slowest_compile_us = 0;
};

// Files NAME.json of {schema, tests: [{valid, data}]}; an instance's text is Python's json.dumps.
Result<GrammarBench> bench_folder(const std::string& folder, const Tokenizer& tokenizer,
                                  std::shared_ptr<const grammar::VocabImage> vocab);

Json bench_json(const GrammarBench& bench);

}  // namespace tensorfold::ctl
