#include "tests/engine/model/golden_support.h"

#include <unistd.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

#include "ctl/verb.h"
#include "engine/weights/convert.h"
#include "kernels/device.h"

namespace tensorfold::test {
namespace {

namespace fs = std::filesystem;

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  BOOST_REQUIRE_MESSAGE(in.good(), "cannot read " + path.string());
  return std::string((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
}

// Safetensors in memory that can be changed in place.
class EditableTensors {
 public:
  explicit EditableTensors(const fs::path& path) : bytes_(read_file(path)) {
    uint64_t size = 0;
    std::memcpy(&size, bytes_.data(), sizeof(size));
    Result<Json> header = parse_json(std::string_view(bytes_).substr(sizeof(size), size));
    BOOST_REQUIRE(header.ok());
    header_ = std::move(header).value();
    payload_ = sizeof(size) + size;
  }

  // Calls edit(values, count) for each F32 tensor whose name ends so. Returns how many there were.
  template <typename Edit>
  int edit(std::string_view suffix, const Edit& change) {
    int edited = 0;
    for (const auto& [name, entry] : header_.as_object()) {
      if (!std::string_view(name).ends_with(suffix)) continue;
      BOOST_REQUIRE_EQUAL(entry.find("dtype")->as_string(), "F32");
      const Json::Array& offsets = entry.find("data_offsets")->as_array();
      const size_t begin = payload_ + static_cast<size_t>(*offsets[0].as_int64());
      const size_t end = payload_ + static_cast<size_t>(*offsets[1].as_int64());
      std::vector<float> values((end - begin) / sizeof(float));
      std::memcpy(values.data(), bytes_.data() + begin, end - begin);
      change(values);
      std::memcpy(bytes_.data() + begin, values.data(), end - begin);
      ++edited;
    }
    return edited;
  }

  void write(const fs::path& path) const {
    std::ofstream out(path, std::ios::binary);
    out.write(bytes_.data(), static_cast<std::streamsize>(bytes_.size()));
    BOOST_REQUIRE(out.good());
  }

 private:
  std::string bytes_;
  Json header_;
  size_t payload_ = 0;
};

// Swaps rows 2n + n j + k and 2n + n k + j of a matrix of (2 + n) n rows (or a vector).
void transpose_comb(std::vector<float>& values, size_t n) {
  const size_t rows = (2 + n) * n, width = values.size() / rows;
  for (size_t j = 0; j < n; ++j) {
    for (size_t k = j + 1; k < n; ++k) {
      const size_t a = (2 * n + n * j + k) * width, b = (2 * n + n * k + j) * width;
      for (size_t i = 0; i < width; ++i) std::swap(values[a + i], values[b + i]);
    }
  }
}

}  // namespace

std::string golden_path(std::string_view name) {
  return std::string(TF_TEST_DATA "/golden/") + std::string(name);
}

void make_bf16_twin(const std::string& folder, std::string_view config) {
  const Result<ConvertReport> made = dequantize_model(golden_path("mini_native"), folder, {});
  BOOST_REQUIRE_MESSAGE(made.ok(), made.status().message());
  if (config.empty()) return;
  fs::copy_file(golden_path(config), fs::path(folder) / "config.json",
                fs::copy_options::overwrite_existing);
}

void plant_fault(const std::string& from, const std::string& to, Fault fault) {
  fs::create_directories(to);
  for (const fs::directory_entry& entry : fs::directory_iterator(from)) {
    const fs::path target = fs::path(to) / entry.path().filename();
    if (entry.path().extension() != ".safetensors") {
      fs::copy_file(entry.path(), target, fs::copy_options::overwrite_existing);
      continue;
    }
    EditableTensors tensors(entry.path());
    int edited = 0;
    if (fault == Fault::kNoSink) {
      edited = tensors.edit("attn.attn_sink", [](std::vector<float>& values) {
        for (float& v : values) v = -1e30f;
      });
    } else if (fault == Fault::kNoRouteBias) {
      edited = tensors.edit("ffn.gate.bias", [](std::vector<float>& values) {
        for (float& v : values) v = 0;
      });
    } else {
      constexpr size_t kStreams = 4;
      const auto transpose = [](std::vector<float>& values) { transpose_comb(values, kStreams); };
      edited = tensors.edit("hc_attn_fn", transpose) + tensors.edit("hc_attn_base", transpose) +
               tensors.edit("hc_ffn_fn", transpose) + tensors.edit("hc_ffn_base", transpose);
    }
    BOOST_REQUIRE_GT(edited, 0);
    tensors.write(target);
  }
}

int64_t EvalOutcome::number(std::string_view key) const {
  const Json* value = report.find(key);
  return value != nullptr && value->is_int() ? value->as_int64().value_or(-1) : -1;
}

int64_t EvalOutcome::figures(std::string_view quantity, std::string_view verdict) const {
  const Json* results = report.find("results");
  int64_t count = 0;
  if (results == nullptr) return count;
  for (const Json& row : results->as_array()) {
    const bool named = quantity.empty() || row.find("quantity")->as_string() == quantity;
    if (named && row.find("verdict")->as_string() == verdict) ++count;
  }
  return count;
}

std::string EvalOutcome::summary() const {
  std::string out = error;
  const Json* results = report.find("results");
  if (results == nullptr) return out;
  for (const Json& row : results->as_array()) {
    const std::string& verdict = row.find("verdict")->as_string();
    if (verdict != "within" && verdict != "no bound" && verdict != "input") {
      out += dump_json_compact(row) + "\n";
    }
  }
  return out;
}

std::string test_device() {
  const char* named = std::getenv("TENSORFOLD_TEST_DEVICE");
  const std::string device = named != nullptr ? named : "cpu";
  if (device == "cpu") return device;
  static const Status opened = open_device(device).status();
  if (opened.ok()) return device;
  std::printf("skipped: %s\n", opened.message().c_str());
  std::fflush(stdout);
  const char* require = std::getenv("TENSORFOLD_REQUIRE");
  const bool needed = require != nullptr && std::strstr(require, "gpu") != nullptr;
  std::_Exit(needed ? 1 : 77);
}

EvalOutcome run_eval(std::vector<std::string> args) {
  args.insert(args.begin(), {"model", "eval"});
  args.push_back("--json");
  const bool units = std::find(args.begin(), args.end(), "--units") != args.end();
  if (!units && test_device() != "cpu") args.insert(args.end(), {"--device", test_device()});
  std::istringstream in;
  std::ostringstream out, err;
  EvalOutcome outcome;
  outcome.exit_code = ctl::run_tfctl(args, in, out, err);
  outcome.error = err.str();
  Result<Json> report = parse_json(out.str());
  if (report.ok()) outcome.report = std::move(report).value();
  return outcome;
}

void check_passed(const EvalOutcome& outcome, const std::vector<std::string>& within) {
  BOOST_CHECK_MESSAGE(outcome.exit_code == ctl::kExitOk, outcome.summary());
  BOOST_CHECK_EQUAL(outcome.number("past"), 0);
  BOOST_CHECK_EQUAL(outcome.number("missing"), 0);
  for (const std::string& quantity : within) {
    BOOST_CHECK_MESSAGE(outcome.figures(quantity, "within") > 0,
                        "no bound was kept by '" + quantity + "'");
  }
}

void check_fails_bounds(const EvalOutcome& outcome) {
  BOOST_CHECK_EQUAL(outcome.exit_code, ctl::kExitFailed);
  BOOST_CHECK_EQUAL(outcome.error, "");
  BOOST_CHECK_GT(outcome.number("past"), 0);
}

}  // namespace tensorfold::test
