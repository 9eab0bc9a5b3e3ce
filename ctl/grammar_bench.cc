// Each schema with empty caches: compile and first mask; then a mask and a step per token of each
// instance. The same once more with what is remembered (warm). Windows of six masks along the next
// tokens, each window once and in order, by a matcher of their own (cold). Times are the thread's
// own: what else runs on the machine does not count. The cost of looking at the clock is taken off.
#include "ctl/grammar_bench.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "engine/grammar/constraint.h"

namespace tensorfold::ctl {
namespace {

using grammar::ConstraintKind;
using grammar::ConstraintSpec;

constexpr size_t kWindowRows = 6;

double thread_us() {
  timespec t{};
  (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) * 1e-3;
}

// Of two looks at the clock with nothing between them; the median.
double empty_us() {
  static const double kEmpty = [] {
    std::vector<double> times(1001);
    for (double& t : times) {
      const double from = thread_us();
      t = thread_us() - from;
    }
    std::nth_element(times.begin(), times.begin() + 500, times.end());
    return times[500];
  }();
  return kEmpty;
}

double micros(double from) { return std::max(0.0, thread_us() - from - empty_us()); }

bool allowed(const std::vector<uint32_t>& bits, TokenId id) {
  const auto i = static_cast<size_t>(id);
  return i / 32 < bits.size() && ((bits[i / 32] >> (i % 32)) & 1U) != 0;
}

// Whether the reply `ids` is accepted and may end there; a time per mask and step.
bool replay(const MaskSource& source, const std::vector<TokenId>& ids, TokenId end,
            std::vector<uint32_t>& bits, std::vector<double>& times) {
  MaskState state = source.start();
  for (const TokenId id : ids) {
    const double from = thread_us();
    (void)source.mask(state, bits);
    const bool ok = allowed(bits, id);
    if (ok) state = source.next(state, id);
    times.push_back(micros(from));
    if (!ok || state == kMaskDead) return false;
  }
  (void)source.mask(state, bits);
  return allowed(bits, end);
}

// What a step with five drafts asks for: steps along them, and the masks of all six rows. Accepts
// 1..6 of them in turn.
void windows(const MaskSource& source, const std::vector<TokenId>& ids, std::vector<uint32_t>& bits,
             std::vector<double>& times) {
  MaskState state = source.start();
  size_t accepted = 1;
  for (size_t at = 0; at + kWindowRows < ids.size(); at += accepted) {
    std::array<MaskState, kWindowRows + 1> states{};
    states[0] = state;
    const double from = thread_us();
    for (size_t row = 0; row < kWindowRows; ++row) {
      (void)source.mask(states[row], bits);
      states[row + 1] = source.next(states[row], ids[at + row]);
    }
    times.push_back(micros(from));
    if (states[kWindowRows] == kMaskDead) return;
    accepted = accepted % kWindowRows + 1;  // the next window begins behind them
    state = states[accepted];
  }
}

Status bench_file(const std::filesystem::path& path, const Tokenizer& tokenizer,
                  const std::shared_ptr<const grammar::VocabImage>& vocab, GrammarBench& bench) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return io_error(path.string(), errno);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const Result<Json> json = parse_json(text, JsonDialect::kPython);
  if (!json.ok()) return json.status().with_context(path.string());
  const Json* schema = json->find("schema");
  const Json* tests = json->find("tests");
  if (schema == nullptr || tests == nullptr || !tests->is_array())
    return invalid_argument(path.string() + ": \"schema\" and \"tests\" expected");
  ConstraintSpec spec;
  spec.kind = ConstraintKind::kJsonSchema;
  spec.text = dump_json_compact(*schema);
  spec.whitespace = grammar::Whitespace::kAny;
  spec.ordered = spec.closed = false;
  const std::string name = path.stem().string();
  const double from = thread_us();
  const auto source = compile_constraint(spec, vocab);
  std::vector<uint32_t> bits(vocab->words());
  if (source.ok()) (void)(*source)->mask((*source)->start(), bits);
  bench.compile_us.push_back(micros(from));
  if (bench.compile_us.back() > bench.slowest_compile_us) {
    bench.slowest_compile_us = bench.compile_us.back();
    bench.slowest_compile = name;
  }
  if (!source.ok()) {
    bench.unsupported.push_back(name);
    bench.reasons.push_back(source.status().message());
    return ok_status();
  }
  bool rejected = false, accepted = false;
  const auto again = compile_constraint(spec, vocab);
  for (const Json& test : tests->as_array()) {
    const Json* valid = test.find("valid");
    const Json* data = test.find("data");
    if (valid == nullptr || !valid->is_bool() || data == nullptr) continue;
    const std::vector<TokenId> ids = tokenizer.encode(dump_json_python(*data));
    const TokenId end = vocab->spec().end_ids[0];
    const size_t before = bench.mask_us.size();
    const bool yes = replay(**source, ids, end, bits, bench.mask_us);
    for (size_t i = before; i < bench.mask_us.size(); ++i) {
      if (bench.mask_us[i] <= bench.slowest_mask_us) continue;
      bench.slowest_mask_us = bench.mask_us[i];
      bench.slowest_mask = name;
    }
    (void)replay(**source, ids, end, bits, bench.warm_mask_us);
    if (again.ok()) windows(**again, ids, bits, bench.window_us);
    if (valid->as_bool() && !yes) rejected = true;
    if (!valid->as_bool() && yes) accepted = true;
  }
  if (rejected) bench.valid_rejected.push_back(name);
  if (accepted) bench.invalid_accepted.push_back(name);
  if (!rejected && !accepted) bench.passed.push_back(name);
  return ok_status();
}

Json names(const std::vector<std::string>& list) {
  Json::Array out;
  for (const std::string& s : list) out.push_back(Json::string(s));
  return Json::array(std::move(out));
}

Json figures(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  auto at = [&](double q) {
    if (values.empty()) return Json::null();
    const auto i = static_cast<size_t>(q * static_cast<double>(values.size()));
    return Json::real(values[std::min(i, values.size() - 1)]);
  };
  return Json::object({{"count", Json::integer(static_cast<int64_t>(values.size()))},
                       {"p50", at(0.50)},
                       {"p90", at(0.90)},
                       {"p99", at(0.99)},
                       {"p99.9", at(0.999)},
                       {"max", at(1.0)}});
}

}  // namespace

Result<GrammarBench> bench_folder(const std::string& folder, const Tokenizer& tokenizer,
                                  std::shared_ptr<const grammar::VocabImage> vocab) {
  std::vector<std::filesystem::path> files;
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(folder, failed)) {
    if (entry.path().extension() == ".json" && entry.path().filename() != "MANIFEST.json")
      files.push_back(entry.path());
  }
  if (failed) return io_error(folder, failed.value());
  if (files.empty()) return invalid_argument(folder + ": no schemas (*.json)");
  std::sort(files.begin(), files.end());
  GrammarBench bench;
  for (const auto& file : files) TF_RETURN_IF_ERROR(bench_file(file, tokenizer, vocab, bench));
  return bench;
}

Json bench_json(const GrammarBench& bench) {
  Json::Array unsupported;
  for (size_t i = 0; i < bench.unsupported.size(); ++i)
    unsupported.push_back(Json::string(bench.unsupported[i]));
  Json::Object reasons;
  for (size_t i = 0; i < bench.unsupported.size(); ++i)
    reasons.emplace_back(bench.unsupported[i], Json::string(bench.reasons[i]));
  return Json::object({{"passed", names(bench.passed)},
                       {"unsupported", Json::array(std::move(unsupported))},
                       {"valid_rejected", names(bench.valid_rejected)},
                       {"invalid_accepted", names(bench.invalid_accepted)},
                       {"mask_us", figures(bench.mask_us)},
                       {"warm_mask_us", figures(bench.warm_mask_us)},
                       {"window_us", figures(bench.window_us)},
                       {"compile_us", figures(bench.compile_us)},
                       {"empty_call_us", Json::real(empty_us())},
                       {"slowest_mask", Json::string(bench.slowest_mask)},
                       {"slowest_compile", Json::string(bench.slowest_compile)},
                       {"reasons", Json::object(std::move(reasons))}});
}

}  // namespace tensorfold::ctl
