// Engram: constants against recorded ones, token maps, rows on demand with cache and batches.
#include <boost/test/unit_test.hpp>
#include <cstring>

#include "engine/weights/batch_reader.h"
#include "engine/weights/engram_constants.h"
#include "engine/weights/engram_storage.h"
#include "engine/weights/token_map.h"
#include "tests/engine/weights/weights_support.h"

namespace tensorfold {
namespace {

EngramConfig published() {
  EngramConfig e;
  e.layers = {1, 14};
  e.table_rows = {384006168, 384016682};
  e.vocab_size = 16'000'000;
  e.compressed_vocab_size = 99092;
  return e;
}

BOOST_AUTO_TEST_CASE(constants_of_the_published_model) {
  const Result<EngramConstants> c = engram_constants(published());
  BOOST_REQUIRE_MESSAGE(c.ok(), c.status().message());
  const std::vector<int64_t> first = {76632096046245, 4839876093313, 35959672319349,
                                      73987337458391};
  const std::vector<int64_t> second = {67716810739261, 51510806800915, 30921347202721,
                                       82619226485591};
  BOOST_TEST(c->layers[0].multipliers == first, boost::test_tools::per_element());
  BOOST_TEST(c->layers[1].multipliers == second, boost::test_tools::per_element());
  const int primes[2][24] = {{57,  79,  81,  97,  121, 129, 133, 183, 189, 207, 211, 253,
                              277, 289, 307, 321, 339, 381, 393, 399, 403, 409, 447, 463},
                             {477, 487, 499, 507, 511, 573, 609, 627, 667, 669, 693, 697,
                              711, 729, 759, 769, 781, 799, 813, 819, 841, 877, 879, 889}};
  for (size_t layer = 0; layer < 2; ++layer) {
    int64_t offset = 0;
    for (size_t column = 0; column < 24; ++column) {
      const int64_t prime = 16'000'000 + primes[layer][column];
      BOOST_TEST(c->layers[layer].primes[column] == prime);
      BOOST_TEST(c->layers[layer].offsets[column] == offset);
      offset += prime;
    }
    BOOST_TEST(offset == published().table_rows[layer]);
  }
}

std::vector<int64_t> numbers(const Json& list) {
  std::vector<int64_t> flat;
  for (const Json& item : list.as_array()) {
    if (item.is_array()) {
      for (int64_t n : numbers(item)) flat.push_back(n);
    } else {
      flat.push_back(*item.as_int64());
    }
  }
  return flat;
}

BOOST_AUTO_TEST_CASE(constants_of_the_recorded_model) {
  const std::string folder = std::string(TF_TEST_DATA) + "/golden/mini_native";
  const Result<ModelConfig> config = load_model_config(folder + "/config.json");
  BOOST_REQUIRE(config.ok());
  const Result<Json> recorded = parse_json(test::read_file(folder + "/engram_constants.json"));
  BOOST_REQUIRE(recorded.ok());
  const Result<EngramConstants> c = engram_constants(config->engram);
  BOOST_REQUIRE_MESSAGE(c.ok(), c.status().message());
  for (size_t layer = 0; layer < c->layers.size(); ++layer) {
    const auto of = [&](const char* key) {
      return numbers(recorded->find(key)->as_array()[layer]);
    };
    BOOST_TEST(c->layers[layer].primes == of("engram_primes"), boost::test_tools::per_element());
    BOOST_TEST(c->layers[layer].offsets == of("engram_offsets"), boost::test_tools::per_element());
    BOOST_TEST(c->layers[layer].multipliers == of("engram_multipliers"),
               boost::test_tools::per_element());
  }
}

BOOST_AUTO_TEST_CASE(another_table_size_is_refused) {
  EngramConfig e = published();
  e.table_rows[1] += 1;
  const Result<EngramConstants> c = engram_constants(e);
  BOOST_REQUIRE(!c.ok());
  BOOST_TEST(c.status().message().find("engram_num_embeddings[1] is 384016683") !=
             std::string::npos);
}

// One position, worked out by hand from the published constants.
BOOST_AUTO_TEST_CASE(the_hash_of_a_position) {
  const Result<EngramConstants> c = engram_constants(published());
  const std::vector<int32_t> ids = {7, 99091, 2, 2};
  std::vector<int64_t> rows(24);
  c->hash(1, ids, rows);
  const EngramConstants::Layer& layer = c->layers[1];
  const int64_t two = (7 * layer.multipliers[0]) ^ (99091 * layer.multipliers[1]);
  const int64_t three = two ^ (2 * layer.multipliers[2]);
  BOOST_TEST(rows[0] == two % 16'000'477);
  BOOST_TEST(rows[7] == two % 16'000'627 + layer.offsets[7]);
  BOOST_TEST(rows[8] == three % 16'000'667 + layer.offsets[8]);
  for (size_t column = 0; column < rows.size(); ++column) {
    BOOST_TEST(rows[column] >= layer.offsets[column]);
    BOOST_TEST(rows[column] < layer.offsets[column] + layer.primes[column]);
  }
}

BOOST_AUTO_TEST_CASE(the_built_in_map_is_that_of_the_published_vocabulary) {
  const Result<std::vector<int32_t>> map = unpack_token_map(builtin_token_map());
  BOOST_REQUIRE_MESSAGE(map.ok(), map.status().message());
  BOOST_TEST(map->size() == 129280U);
  int32_t next = 0;  // classes appear in order, without a gap
  for (int32_t id : *map) {
    BOOST_REQUIRE(id <= next);
    if (id == next) ++next;
  }
  BOOST_TEST(next == 99092);
  BOOST_TEST((*map)[2] == 2);
}

BOOST_AUTO_TEST_CASE(packed_maps_are_checked) {
  const std::span<const std::byte> good = builtin_token_map();
  const auto refused = [](std::vector<std::byte> bytes) { return !unpack_token_map(bytes).ok(); };
  const std::vector<std::byte> copy(good.begin(), good.end());
  for (size_t kept :
       {size_t{0}, size_t{8}, size_t{15}, size_t{16}, size_t{5000}, copy.size() - 1}) {
    BOOST_TEST(refused({copy.begin(), copy.begin() + static_cast<ptrdiff_t>(kept)}));
  }
  for (size_t at : {size_t{0}, size_t{8}, size_t{11}, size_t{12}, size_t{16}, copy.size() - 1}) {
    std::vector<std::byte> bad = copy;
    bad[at] ^= std::byte{0x80};
    BOOST_TEST(refused(bad), at);
  }
}

BOOST_AUTO_TEST_CASE(a_folder_may_carry_its_own_map) {
  const TempFolder folder;
  const ModelConfig config = test::small_model_config();
  const std::string path = folder.path(kTokenMapFileName);
  const auto said = [&](std::string_view part) {
    const Result<std::vector<int32_t>> map = load_token_map(config, folder.path());
    BOOST_REQUIRE(!map.ok());
    BOOST_TEST(map.status().message().find(part) != std::string::npos, map.status().message());
    BOOST_TEST(map.status().message().find(path) != std::string::npos);
  };
  said("missing, and the built-in token map is of another vocabulary");
  std::string map(500 * 4, '\0');
  test::write_file(path, map);
  BOOST_TEST(load_token_map(config, folder.path()).ok());
  test::write_file(path, map + "\1");
  said("2001 bytes, expected 2000");
  map[4 * 17] = '\x90';
  map[4 * 17 + 1] = 1;  // 400: one past the last compressed id
  test::write_file(path, map);
  said("entry 17 is 400");
  map[4 * 17 + 3] = '\xff';
  test::write_file(path, map);
  said("entry 17 is -");
}

// A table whose row r has values that tell r.
struct Table {
  TempFolder folder;
  ModelConfig config = test::small_model_config();
  Safetensors files;

  explicit Table(DType dtype) {
    constexpr int64_t kRows = 1248, kWidth = 64;
    std::string values, scales;
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t i = 0; i < kWidth; ++i) {
        const uint16_t bits = fp32_to_bf16(static_cast<float>((r * 31 + i) % 256));
        if (dtype == DType::kF8E4M3) {
          values.push_back(static_cast<char>((r * 31 + i) % 126));
        } else {
          values.append(reinterpret_cast<const char*>(&bits), 2);
        }
      }
      scales.push_back(static_cast<char>(120 + r % 5));
      scales.push_back(static_cast<char>(125 - r % 3));
    }
    const std::string name = engram_table_name(config, 0);
    std::vector<test::Tensor> tensors = {{name + ".weight", dtype, {kRows, kWidth}, values}};
    if (dtype == DType::kF8E4M3) {
      tensors.push_back({name + ".scale", DType::kF8E8M0, {kRows, 2}, scales});
    }
    test::write_safetensors(folder.path("model.safetensors"), tensors);
    files = *Safetensors::open(folder.path());
  }
  EngramStorage storage() { return *find_engram(files, config, 0); }
};

BOOST_AUTO_TEST_CASE(rows_are_read_alike_by_ring_and_by_pread) {
  for (DType dtype : {DType::kF8E4M3, DType::kBf16}) {
    Table table(dtype);
    std::vector<int64_t> asked;
    for (int64_t i = 0; i < 1500; ++i) asked.push_back(i * 37 % 1248);
    std::vector<std::byte> first;
    for (bool use_ring : {true, false}) {
      const auto t = make_engram_table(table.storage(), 100, use_ring);
      BOOST_TEST(t->row_bytes() == (dtype == DType::kBf16 ? 128 : 66));
      std::vector<std::byte> raw(asked.size() * static_cast<size_t>(t->row_bytes()));
      BOOST_REQUIRE(t->read(asked, raw).ok());
      BOOST_TEST(t->stats().misses == 1248U);
      BOOST_TEST(t->stats().hits == asked.size() - 1248U);
      if (first.empty()) first = raw;
      BOOST_TEST((raw == first));
      std::vector<float> values(64);
      for (size_t i = 0; i < asked.size(); i += 111) {
        const auto bytes = static_cast<size_t>(t->row_bytes());
        t->decode_row(std::span(raw).subspan(i * bytes, bytes), values);
        const int64_t r = asked[i];
        for (int64_t k = 0; k < 64; ++k) {
          const auto code = static_cast<uint8_t>((r * 31 + k) % 126);
          const auto scale = static_cast<uint8_t>(k < 32 ? 120 + r % 5 : 125 - r % 3);
          const float expected = dtype == DType::kBf16
                                     ? static_cast<float>((r * 31 + k) % 256)
                                     : fp8_e4m3_to_fp32(code) * ue8m0_to_fp32(scale);
          BOOST_REQUIRE_EQUAL(values[static_cast<size_t>(k)], expected);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(the_cache_is_bounded_and_keeps_what_is_used) {
  Table table(DType::kF8E4M3);
  const auto t = make_engram_table(table.storage(), 8);
  std::vector<std::byte> raw(66);
  const auto read = [&](int64_t row) { BOOST_REQUIRE(t->read({{row}}, raw).ok()); };
  for (int64_t row = 0; row < 8; ++row) read(row);
  BOOST_TEST(t->stats().misses == 8U);
  for (int64_t row = 0; row < 8; ++row) read(row);
  BOOST_TEST(t->stats().hits == 8U);
  for (int64_t row = 100; row < 200; ++row) {  // a hot row outlives a stream of cold ones
    read(3);
    read(row);
  }
  BOOST_TEST(t->stats().misses == 8U + 100U);
  BOOST_TEST(t->stats().hits == 8U + 100U);
  BOOST_TEST(t->stats().bytes_read == 108U * 66U);

  const auto none = make_engram_table(table.storage(), 0);
  for (int i = 0; i < 3; ++i) BOOST_REQUIRE(none->read({{5}}, raw).ok());
  BOOST_TEST(none->stats().misses == 3U);
}

BOOST_AUTO_TEST_CASE(rows_out_of_range_cut_files_and_nans_are_named) {
  Table table(DType::kF8E4M3);
  const auto t = make_engram_table(table.storage(), 8);
  std::vector<std::byte> raw(66);
  for (int64_t row : {int64_t{-1}, int64_t{1248}, INT64_MAX, INT64_MIN}) {
    const Status status = t->read({{row}}, raw);
    BOOST_TEST((status.code() == StatusCode::kInvalidArgument));
    BOOST_TEST(status.message().find("row " + std::to_string(row)) != std::string::npos);
  }
  const std::string path = table.folder.path("model.safetensors");
  const EngramStorage storage = table.storage();
  std::string bytes = test::read_file(path);
  bytes[static_cast<size_t>(storage.segments[1].offset + 2 * 7)] = '\xff';
  test::write_file(path, bytes);
  const Status nan = t->read({{7}}, raw);
  BOOST_TEST((nan.code() == StatusCode::kDataLoss));
  BOOST_TEST(nan.message().find("row 7 has a NaN") != std::string::npos, nan.message());
  std::filesystem::resize_file(path, static_cast<size_t>(storage.segments[0].offset + 64));
  const Status cut = t->read({{9}}, raw);
  BOOST_TEST(cut.message().find("truncated") != std::string::npos, cut.message());
  BOOST_TEST(cut.message().find("layers.1.engram.embed") != std::string::npos);
}

}  // namespace
}  // namespace tensorfold
