#include "ctl/bench/samples.h"

#include <algorithm>
#include <utility>

namespace tensorfold::ctl::bench {

std::vector<double> column(std::span<const Sample> samples, double (*figure)(const Sample&)) {
  std::vector<double> values;
  for (const Sample& sample : samples) values.push_back(figure(sample));
  return values;
}

void add_counts(Json& cell, std::span<const Sample> samples) {
  Json::Array prompt, completion, cached, reasons, shas;
  bool has_sha = false;
  for (const Sample& sample : samples) {
    prompt.push_back(Json::integer(sample.prompt_tokens));
    completion.push_back(Json::integer(sample.completion_tokens));
    cached.push_back(sample.cached_tokens ? Json::integer(*sample.cached_tokens) : Json::null());
    reasons.push_back(Json::string(sample.finish_reason));
    shas.push_back(Json::string(sample.token_sha));
    has_sha |= !sample.token_sha.empty();
  }
  cell.set("prompt_tokens", Json::array(std::move(prompt)));
  cell.set("completion_tokens", Json::array(std::move(completion)));
  cell.set("cached_tokens", Json::array(std::move(cached)));
  cell.set("finish_reasons", Json::array(std::move(reasons)));
  if (has_sha) cell.set("token_shas", Json::array(std::move(shas)));
}

bool identical_texts(std::span<const Sample> samples) {
  return std::all_of(samples.begin(), samples.end(), [&](const Sample& sample) {
    return sample.text == samples[0].text && sample.reasoning == samples[0].reasoning;
  });
}

bool is_cold(const Sample& sample) { return sample.cached_tokens.value_or(0) == 0; }

}  // namespace tensorfold::ctl::bench
