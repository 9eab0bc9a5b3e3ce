// Tokenizer speed on one core. Not a test.
//
// usage: tokenizer_bench TOKENIZER_JSON [TEXT_FILE]
// Without a file: generated English-like text, Chinese text and code of a few MB each. Prints MB/s
// (10^6 bytes), tokens per second and bytes per token, best of five runs by processor time.
#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/tokenizer.h"

namespace {

constexpr size_t kTextBytes = 8'000'000;
constexpr int kRuns = 5;

constexpr std::string_view kCommonWords =
    "the of and to in a is that for it was on are as with they be at this have from or "
    "had by not but what all were when we there can an your which their said if do will "
    "each about how up out them then she many some these would other into has more two "
    "her like him see time could no make than first been its who now people my made over "
    "did down only way find use may water long little very after words called just where "
    "most know temperature government machine learning different important morning "
    "however development experience university international particularly understanding "
    "information environment responsibility technology consciousness architecture";
constexpr std::string_view kSyllables =
    "ba con der el for gra hi in jo ka lo mer nu or per qua ri sta tion ul ver wes ing ly";

std::vector<std::string> split(std::string_view words) {
  std::istringstream in{std::string(words)};
  return {std::istream_iterator<std::string>(in), {}};
}

// Words with the frequencies of a natural language: rank r about 1/r, lengths of English words.
std::string english() {
  const std::vector<std::string> common = split(kCommonWords), syllables = split(kSyllables);
  std::mt19937 random(7);
  std::string out;
  while (out.size() < kTextBytes) {
    for (int w = 4 + static_cast<int>(random() % 14); w > 0; --w) {
      std::string word;
      if (random() % 10 != 0) {
        const double u = static_cast<double>(random() % 100000) / 100000;
        word = common[static_cast<size_t>(u * u * static_cast<double>(common.size()))];
      } else {
        for (auto n = 2 + random() % 3; n > 0; --n) word += syllables[random() % syllables.size()];
      }
      if (random() % 60 == 0) word = std::to_string(random() % 3000);
      out += word;
      if (w > 1) out += random() % 12 == 0 ? ", " : " ";
    }
    out += random() % 6 == 0 ? ".\n\n" : ". ";
  }
  return out;
}

std::string chinese() {
  std::mt19937 random(8);
  std::string out;
  while (out.size() < kTextBytes) {
    const auto code = 0x4E00 + random() % (random() % 4 == 0 ? 5000 : 400);
    out += static_cast<char>(0xE0 | code >> 12);
    out += static_cast<char>(0x80 | (code >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
    if (random() % 15 == 0) out += "，";
    if (random() % 60 == 0) out += "。\n";
  }
  return out;
}

std::string code() {
  std::mt19937 random(9);
  std::string out;
  while (out.size() < kTextBytes) {
    const std::string n = std::to_string(random() % 500);
    out += "  for (size_t i = " + n + "; i < values_" + n +
           ".size(); ++i) {\n    total += values_" + n + "[i] * 0x" + n +
           "; // sum of squares\n  }\n";
  }
  return out;
}

void measure(const tensorfold::Tokenizer& tokenizer, const char* name, const std::string& text) {
  double best = 1e9;
  size_t tokens = 0;
  for (int run = 0; run < kRuns; ++run) {
    const std::clock_t start = std::clock();
    tokens = tokenizer.encode(text).size();
    best = std::min(best, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  }
  std::printf("%-8s %8.1f MB/s  %10.0f tokens/s  %.2f bytes/token\n", name,
              static_cast<double>(text.size()) / best / 1e6, static_cast<double>(tokens) / best,
              static_cast<double>(text.size()) / static_cast<double>(tokens));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "usage: tokenizer_bench TOKENIZER_JSON [TEXT_FILE]\n");
    return 2;
  }
  const auto start = std::chrono::steady_clock::now();
  const auto tokenizer = tensorfold::Tokenizer::load(argv[1]);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.status().to_string().c_str());
    return 1;
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::printf("load     %8.0f ms\n", took.count() * 1e3);
  if (argc == 3) {
    std::ifstream file(argv[2], std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    measure(**tokenizer, "file", text);
    return 0;
  }
  measure(**tokenizer, "english", english());
  measure(**tokenizer, "chinese", chinese());
  measure(**tokenizer, "code", code());
  return 0;
}
