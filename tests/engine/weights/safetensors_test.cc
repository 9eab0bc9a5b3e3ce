// The safetensors reader: what it reads, and that hostile files are refused by name.
#include "engine/weights/safetensors.h"

#include <sys/stat.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>

#include "tests/engine/weights/weights_support.h"

namespace tensorfold {
namespace {

using tensorfold::TempFolder;
using test::write_file;
using test::write_raw_safetensors;

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

struct HostileHeader {
  const char* what;
  std::string header;
  size_t data_bytes;
  std::vector<std::string> said;  // parts of the message
};

std::string one(const std::string& entry) { return "{\"w\": " + entry + "}"; }

std::vector<HostileHeader> hostile_entries() {
  return {
      {"not JSON", "hello", 0, {"header", "not a JSON object"}},
      {"an array", "[1]", 0, {"not a JSON object"}},
      {"deep", std::string(2000, '[') + std::string(2000, ']'), 0, {"header"}},
      {"no dtype",
       one(R"({"shape": [1], "data_offsets": [0, 4]})"),
       4,
       {"tensor w", "dtype, shape or data_offsets is missing"}},
      {"unknown dtype",
       one(R"({"dtype": "F12", "shape": [1], "data_offsets": [0, 4]})"),
       4,
       {"tensor w", "unknown dtype \"F12\""}},
      {"unknown field",
       one(R"({"dtype": "F32", "shape": [1], "data_offsets": [0, 4], "strides": [1]})"),
       4,
       {"tensor w", "strides"}},
      {"field twice",
       one(R"({"dtype": "F32", "dtype": "F16", "shape": [1], "data_offsets": [0, 4]})"),
       4,
       {"tensor w", "comes twice"}},
      {"negative dimension",
       one(R"({"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]})"),
       4,
       {"tensor w", "natural"}},
      {"fractional dimension",
       one(R"({"dtype": "F32", "shape": [1.5], "data_offsets": [0, 4]})"),
       4,
       {"tensor w", "natural"}},
      {"a shape that overflows",
       one(R"({"dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 0]})"),
       0,
       {"tensor w", "does not take"}},
      {"too many dimensions",
       one(R"({"dtype": "U8", "shape": [1,1,1,1,1,1,1,1,1], "data_offsets": [0, 1]})"),
       1,
       {"tensor w", "more than 8 dimensions"}},
      {"size and shape differ",
       one(R"({"dtype": "BF16", "shape": [3], "data_offsets": [0, 4]})"),
       4,
       {"tensor w", "[3] of BF16"}},
  };
}

std::vector<HostileHeader> hostile_ranges() {
  return {
      {"past the end",
       one(R"({"dtype": "F32", "shape": [2], "data_offsets": [0, 8]})"),
       4,
       {"tensor w", "truncated", "byte 8 of a buffer of 4"}},
      {"far past the end",
       one(R"({"dtype": "U8", "shape": [1], "data_offsets": [9223372036854775806, )"
           R"(9223372036854775807]})"),
       4,
       {"tensor w", "truncated"}},
      {"end before begin",
       one(R"({"dtype": "F32", "shape": [1], "data_offsets": [4, 0]})"),
       4,
       {"tensor w", "end before they begin"}},
      {"negative offset",
       one(R"({"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]})"),
       4,
       {"tensor w", "natural"}},
      {"three offsets",
       one(R"({"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]})"),
       4,
       {"tensor w", "list of two"}},
      {"overlap",
       R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
           "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}})",
       12,
       {"tensor b", "overlaps that of tensor a"}},
      {"the same bytes twice",
       R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
           "b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})",
       4,
       {"overlaps"}},
      {"a hole",
       R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
           "b": {"dtype": "F32", "shape": [1], "data_offsets": [8, 12]}})",
       12,
       {"tensor b", "hole of 4 bytes"}},
      {"bytes after the last tensor",
       one(R"({"dtype": "F32", "shape": [1], "data_offsets": [0, 4]})"),
       9,
       {"5 bytes after the last tensor"}},
  };
}

std::vector<HostileHeader> hostile_names() {
  return {
      {"duplicate",
       R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
           "a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}})",
       8,
       {"tensor a", "duplicate"}},
      {"empty name",
       R"({"": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})",
       4,
       {"tensor name of 0 bytes"}},
      {"long name",
       "{\"" + std::string(1025, 'x') +
           R"(": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})",
       4,
       {"tensor name of 1025 bytes"}},
      {"metadata that is no text", R"({"__metadata__": {"a": 1}})", 0, {"__metadata__"}},
      {"metadata that is a list", R"({"__metadata__": []})", 0, {"__metadata__"}},
      {"an entry that is no object", one("7"), 0, {"tensor w", "not an object"}},
  };
}

BOOST_AUTO_TEST_CASE(hostile_headers_are_refused_by_file_and_tensor) {
  const TempFolder folder;
  const std::string path = folder.path("model.safetensors");
  std::vector<HostileHeader> headers = hostile_entries();
  for (const auto& more : {hostile_ranges(), hostile_names()}) {
    headers.insert(headers.end(), more.begin(), more.end());
  }
  for (const HostileHeader& hostile : headers) {
    BOOST_TEST_CONTEXT(hostile.what) {
      write_raw_safetensors(path, hostile.header, std::string(hostile.data_bytes, 'x'));
      const Result<Safetensors> files = Safetensors::open(folder.path());
      BOOST_REQUIRE(!files.ok());
      BOOST_TEST(contains(files.status().message(), path));
      for (const std::string& part : hostile.said) {
        BOOST_TEST(contains(files.status().message(), part), files.status().message()
                                                                 << " lacks: " << part);
      }
    }
  }
}

struct HostileFile {
  const char* what;
  std::string bytes;
  const char* said;
};

BOOST_AUTO_TEST_CASE(files_that_are_no_checkpoint_are_refused) {
  const std::string huge("\0\0\0\0\0\0\0\x10{}", 10);        // a header of 2^60 bytes
  const std::string over("\x01\xe1\xf5\x05\0\0\0\0{}", 10);  // one past the bound
  const HostileFile table[] = {
      {"empty", "", "truncated"},
      {"short", "abc", "truncated"},
      {"header of 2^60", huge, "claims 1152921504606846976 bytes"},
      {"one past the header bound", over, "claims 100000001 bytes"},
      {"header past the end", std::string("\xff\0\0\0\0\0\0\0{}", 10), "truncated: the header"},
      {"Git LFS pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:0000\nsize 17\n",
       "Git LFS pointer"},
  };
  const TempFolder folder;
  const std::string path = folder.path("model.safetensors");
  for (const HostileFile& hostile : table) {
    BOOST_TEST_CONTEXT(hostile.what) {
      write_file(path, hostile.bytes);
      const Result<Safetensors> files = Safetensors::open(folder.path());
      BOOST_REQUIRE(!files.ok());
      BOOST_TEST(contains(files.status().message(), path));
      BOOST_TEST(contains(files.status().message(), hostile.said), files.status().message());
    }
  }
}

const char* const kOne = R"({"a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}})";
const char* const kOther = R"({"b": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}})";

BOOST_AUTO_TEST_CASE(shards_and_index_must_agree) {
  const TempFolder folder;
  const auto refused = [&](std::string_view said) {
    const Result<Safetensors> files = Safetensors::open(folder.path());
    BOOST_REQUIRE(!files.ok());
    BOOST_TEST(contains(files.status().message(), said), files.status().message());
  };
  refused("no model*.safetensors");
  write_raw_safetensors(folder.path("model-00001-of-00002.safetensors"), kOne, "xyz");
  refused("says there are 2 shards, but 1");
  write_raw_safetensors(folder.path("model-00002-of-00002.safetensors"), kOne, "xyz");
  refused("tensor a: duplicate, it is also in");
  write_raw_safetensors(folder.path("model-00002-of-00002.safetensors"), kOther, "xy");
  BOOST_TEST(Safetensors::open(folder.path()).ok());

  const std::string index = folder.path("model.safetensors.index.json");
  const auto with_index = [&](const std::string& map) {
    write_file(index, "{\"weight_map\": " + map + "}");
  };
  write_file(index, "{}");
  refused("no weight_map");
  with_index(
      R"({"a": "model-00001-of-00002.safetensors", "b": "model-00003-of-00002.safetensors"})");
  refused("model-00003-of-00002.safetensors: No such file");
  with_index(R"({"a": "../model-00001-of-00002.safetensors"})");
  refused("is not a file name");
  with_index(R"({"a": 3})");
  refused("its file is not a string");
  with_index(
      R"({"a": "model-00001-of-00002.safetensors", "a": "model-00001-of-00002.safetensors"})");
  refused("tensor a: duplicate");
  with_index(
      R"({"a": "model-00001-of-00002.safetensors", "b": "model-00001-of-00002.safetensors"})");
  refused("tensor b: missing, although the index says");
  with_index(
      R"({"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"})");
  BOOST_TEST(Safetensors::open(folder.path()).ok());
}

BOOST_AUTO_TEST_CASE(a_partial_folder_gives_the_shards_that_are_there) {
  const TempFolder folder;
  write_raw_safetensors(folder.path("model-00002-of-00002.safetensors"), kOther, "xy");
  write_file(folder.path("model.safetensors.index.json"),
             R"({"weight_map": {"a": "model-00001-of-00002.safetensors",
                                "b": "model-00002-of-00002.safetensors"}})");
  BOOST_TEST(!Safetensors::open(folder.path()).ok());
  const Result<Safetensors> files = Safetensors::open(folder.path(), /*partial=*/true);
  BOOST_REQUIRE_MESSAGE(files.ok(), files.status().message());
  BOOST_TEST(files->find("a") == nullptr);
  BOOST_TEST(files->find("b") != nullptr);
}

BOOST_AUTO_TEST_CASE(a_file_cut_after_opening_is_truncated_not_garbage) {
  const TempFolder folder;
  const std::string path = folder.path("model.safetensors");
  write_raw_safetensors(path, kOne, "xyz");
  const Result<Safetensors> files = Safetensors::open(folder.path());
  BOOST_REQUIRE(files.ok());
  BOOST_REQUIRE(::truncate(path.c_str(), 8 + static_cast<off_t>(std::string(kOne).size()) + 1) ==
                0);
  std::vector<std::byte> out(3);
  const Status status = files->read(*files->find("a"), 0, out);
  BOOST_TEST((status.code() == StatusCode::kDataLoss));
  BOOST_TEST(contains(status.message(), "tensor a"));
  BOOST_TEST(contains(status.message(), path));
}

BOOST_AUTO_TEST_CASE(a_fifo_or_a_folder_is_not_read) {
  const TempFolder folder;
  BOOST_REQUIRE(::mkfifo(folder.path("model.safetensors").c_str(), 0600) == 0);
  const Result<Safetensors> files = Safetensors::open(folder.path());
  BOOST_REQUIRE(!files.ok());
  BOOST_TEST(contains(files.status().message(), "not a regular file"), files.status().message());
}

BOOST_AUTO_TEST_CASE(what_is_written_is_read_back) {
  const TempFolder folder;
  const std::string path = folder.path("model.safetensors");
  const std::vector<test::Tensor> tensors = {
      {"z", DType::kI16, {2, 3}, std::string("abcdefghijkl")},
      {"scalar", DType::kI32, {}, "\1\2\3\4"},
      {"none", DType::kF32, {0, 7}, ""},
      {"name with \"quotes\" and \xc3\xa9", DType::kU8, {2}, "hi"},
  };
  test::write_safetensors(path, tensors);
  const Result<Safetensors> files = Safetensors::open(path);
  BOOST_REQUIRE_MESSAGE(files.ok(), files.status().message());
  BOOST_TEST(files->tensors().size() == tensors.size());
  for (const test::Tensor& t : tensors) {
    const TensorInfo* info = files->find(t.name);
    BOOST_REQUIRE(info != nullptr);
    BOOST_TEST((info->dtype == t.dtype && info->shape == t.shape));
    std::string bytes(t.bytes.size(), '\0');
    BOOST_REQUIRE(files->read(*info, 0, std::as_writable_bytes(std::span<char>(bytes))).ok());
    BOOST_TEST(bytes == t.bytes);
  }
  // Columns 1..2 of the rows 0..1 of 6 bytes each.
  std::string block(4, '\0');
  BOOST_REQUIRE(files
                    ->read_block(*files->find("z"), 6, 0, 2, 1, 2,
                                 std::as_writable_bytes(std::span<char>(block)))
                    .ok());
  BOOST_TEST(block == "bchi");
}

BOOST_AUTO_TEST_CASE(a_writer_that_is_dropped_leaves_nothing) {
  const TempFolder folder;
  {
    auto writer =
        SafetensorsWriter::create(folder.path("model.safetensors"), {{"a", DType::kU8, {3}}});
    BOOST_REQUIRE(writer.ok());
    BOOST_REQUIRE((*writer)->append(std::as_bytes(std::span<const char>("x", 1))).ok());
  }
  BOOST_TEST(std::filesystem::is_empty(folder.path()));
}

BOOST_AUTO_TEST_CASE(the_sampled_digest_tells_models_apart) {
  const TempFolder folder;
  const std::string path = folder.path("model.safetensors");
  const auto digest = [&](const char* header, const std::string& data) {
    write_raw_safetensors(path, header, data);
    return *Safetensors::open(path)->sampled_digest();
  };
  const std::string first = digest(kOne, "xyz");
  BOOST_TEST(first == digest(kOne, "xyz"));
  BOOST_TEST(first != digest(kOne, "xyy"));
  BOOST_TEST(first !=
             digest(R"({"c": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}})", "xyz"));
}

}  // namespace
}  // namespace tensorfold
