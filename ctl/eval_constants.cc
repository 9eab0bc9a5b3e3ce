// See eval_constants.h.
#include "ctl/eval_constants.h"

#include "ctl/eval_golden.h"

namespace tensorfold::ctl {
namespace {

std::vector<int64_t> gather(const EngramConstants& constants,
                            std::vector<int64_t> EngramConstants::Layer::*list) {
  std::vector<int64_t> out;
  for (const EngramConstants::Layer& layer : constants.layers) {
    out.insert(out.end(), (layer.*list).begin(), (layer.*list).end());
  }
  return out;
}

}  // namespace

std::vector<int64_t> all_multipliers(const EngramConstants& constants) {
  return gather(constants, &EngramConstants::Layer::multipliers);
}
std::vector<int64_t> all_primes(const EngramConstants& constants) {
  return gather(constants, &EngramConstants::Layer::primes);
}
std::vector<int64_t> all_offsets(const EngramConstants& constants) {
  return gather(constants, &EngramConstants::Layer::offsets);
}

void compare_integers(const StoredTensor& tensor, std::span<const int64_t> ours,
                      EvalReport& report) {
  if (!tensor.is_integer() || tensor.count() != static_cast<int64_t>(ours.size())) {
    report.missing("", tensor.name, -1,
                   tensor.shape_text() + " against " + std::to_string(ours.size()) + " values");
    return;
  }
  Figure f;
  f.quantity = tensor.name;
  f.measure = "differing";
  f.bound = 0;
  f.compared = tensor.count();
  for (size_t i = 0; i < ours.size(); ++i) {
    if (tensor.i64(static_cast<int64_t>(i)) != ours[i]) f.value += 1;
  }
  f.note = "of " + std::to_string(tensor.count());
  report.add(std::move(f));
}

void compare_constants(const TensorFile& file, const WeightSource& source, EvalReport& report) {
  const Result<EngramConstants> constants = engram_constants(source.config().engram);
  for (const StoredTensor* tensor : golden_constants(file)) {
    const std::string& name = tensor->name;
    const bool computed =
        name == "engram_primes" || name == "engram_offsets" || name == "engram_multipliers";
    if (computed && !constants.ok()) {
      report.missing("", name, -1, constants.status().message());
    } else if (name == "engram_primes") {
      compare_integers(*tensor, all_primes(*constants), report);
    } else if (name == "engram_offsets") {
      compare_integers(*tensor, all_offsets(*constants), report);
    } else if (name == "engram_multipliers") {
      compare_integers(*tensor, all_multipliers(*constants), report);
    } else if (name == "engram_token_map") {
      const std::span<const int32_t> map = source.engram_token_map();
      compare_integers(*tensor, std::vector<int64_t>(map.begin(), map.end()), report);
    } else {
      Figure f;
      f.quantity = name;
      f.verdict = Verdict::kUnknown;
      f.note = tensor->shape_text();
      report.add_as_is(std::move(f));
    }
  }
}

}  // namespace tensorfold::ctl
