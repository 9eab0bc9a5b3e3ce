// Rows that cannot be read while a reply is computed: the file of the Engram tables of a real model
// is cut short under its engine. Requests of the step end with the reason, the engine does not; and
// what they left is never taken for a prefix: once the file is whole again, replies are those of
// an engine that saw none of it.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/engine/cache_serving.h"
#include "tests/temp_folder.h"

using namespace tensorfold;
using namespace tensorfold::scripted;

namespace {

namespace fs = std::filesystem;

// The golden mini model in a folder of its own, whose weights file can be taken away and given
// back.
struct Fragile {
  Fragile() {
    const fs::path from = TF_TEST_DATA "/golden/mini_native";
    for (const char* name : {"config.json", "engram_constants.json", "engram_token_map.i32"})
      fs::copy_file(from / name, folder.path(name));
    std::ifstream in(from / "model.safetensors", std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
    give_back();
  }
  std::string file() const { return folder.path("model.safetensors"); }
  void give_back() const {  // the same inode: the engine has it open
    std::fstream out(file(), std::ios::binary | std::ios::out | std::ios::in);
    if (!out) out.open(file(), std::ios::binary | std::ios::out);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  void take_away() const { fs::resize_file(file(), 4096); }

  TempFolder folder;
  std::string bytes;
};

std::vector<TokenId> prompt_of(std::mt19937_64& rng, int length) {
  std::vector<TokenId> ids;
  for (int i = 0; i < length; ++i) ids.push_back(static_cast<TokenId>(3 + rng() % 240));
  return ids;
}

}  // namespace

BOOST_AUTO_TEST_CASE(rows_that_cannot_be_read_end_their_requests_and_nothing_else) {
  const Fragile fragile;
  auto collective = make_single_collective();
  const auto model = load_model(fragile.folder.path(), *collective);
  const auto other = load_model(TF_TEST_DATA "/golden/mini_native", *collective);
  ServingOptions options;
  options.slots = 2;
  std::mt19937_64 rng(7);
  Serving serving(*model, options);
  int failed = 0, cached = 0;
  for (int round = 0; round < 3; ++round) {
    // A conversation whose beginning is cached, and one that nobody has seen.
    const std::vector<TokenId> known = prompt_of(rng, 300 + 20 * round);
    (void)serving.run_one(cache_request(known, 3, rng));
    std::vector<TokenId> longer = known;
    for (const TokenId id : prompt_of(rng, 90)) longer.push_back(id);
    const Request next = cache_request(longer, 4, rng);
    const Request fresh = cache_request(prompt_of(rng, 200), 4, rng);
    fragile.take_away();
    for (const Request& request : {next, fresh}) {
      const auto sink = serving.submit(request);
      serving.run_dry();  // the engine goes on
      const Reply reply = sink->reply();
      BOOST_TEST((reply.status.code() == StatusCode::kUnavailable));
      BOOST_TEST(reply.status.reason() == kReasonStorage);
      BOOST_TEST(reply.status.message().find("model.safetensors") != std::string::npos);
      ++failed;
    }
    fragile.give_back();
    for (const Request& request : {next, fresh}) {
      ServingOptions cold = options;
      cold.snapshot_units = 0;
      const Reply want = Serving(*other, cold).run_one(request);
      const Reply got = serving.run_one(request);
      BOOST_TEST(equal_replies(got, want));
      cached += got.stats.usage.cached_tokens;
    }
  }
  BOOST_TEST(failed == 6);
  BOOST_TEST(cached > 0);
}
