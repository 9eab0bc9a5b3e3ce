// Prepared images: equal to the folder for every tensor and rank; damaged, truncated and foreign
// ones are refused by name.
#include "engine/weights/image.h"

#include <unistd.h>

#include <boost/test/unit_test.hpp>

#include "engine/weights/file.h"
#include "engine/weights/image_format.h"
#include "engine/weights/weight_source.h"
#include "tests/engine/weights/weights_support.h"

namespace tensorfold {
namespace {

using tensorfold::TempFolder;

struct Prepared {
  TempFolder folder;
  std::string model = folder.path("model"), images = folder.path("images");

  explicit Prepared(const test::StoragePlan& plan, int world_size = 2, bool with_engram = true) {
    test::write_model(model, test::small_config(), test::model_tensors(test::small_config(), plan));
    PrepareOptions options;
    options.model_path = model;
    options.out_path = images;
    options.world_size = world_size;
    options.with_engram = with_engram;
    const Status status = prepare_images(options, {});
    BOOST_REQUIRE_MESSAGE(status.ok(), status.message());
  }
  std::string image(int rank, int world_size = 2) const {
    return images + "/" + image_file_name(rank, world_size);
  }
};

Result<std::unique_ptr<WeightSource>> open_source(const std::string& model,
                                                  const std::string& prepared, int rank,
                                                  int world_size = 2) {
  WeightSourceOptions options;
  options.model_path = model;
  options.prepared_path = prepared;
  options.rank = rank;
  options.world_size = world_size;
  return WeightSource::open(options);
}

bool equal(const Weight& a, const Weight& b) {
  return a.kind == b.kind && a.out == b.out && a.in == b.in && a.data == b.data &&
         a.scales == b.scales && a.scale_rows == b.scale_rows && a.padded_out == b.padded_out &&
         a.padded_in == b.padded_in && a.half_bits == b.half_bits && a.codebook == b.codebook &&
         a.suh == b.suh && a.svh == b.svh && a.bias == b.bias;
}

void compare(const WeightSource& folder, const WeightSource& image) {
  BOOST_TEST(folder.fingerprint() == image.fingerprint());
  BOOST_TEST(folder.rank_bytes() == image.rank_bytes());
  BOOST_REQUIRE_EQUAL(folder.weights().size(), image.weights().size());
  for (size_t i = 0; i < folder.weights().size(); ++i) {
    const std::string& name = folder.weights()[i].name;
    BOOST_REQUIRE_EQUAL(name, image.weights()[i].name);
    BOOST_REQUIRE_EQUAL(folder.holds(name), image.holds(name));
    if (!folder.holds(name)) {
      BOOST_TEST(!image.load(name).ok());
    } else if (name.ends_with(".attn.wo_a")) {
      const auto a = folder.load_groups(name), b = image.load_groups(name);
      BOOST_REQUIRE(a.ok() && b.ok());
      BOOST_REQUIRE_EQUAL(a->size(), b->size());
      for (size_t g = 0; g < a->size(); ++g) BOOST_TEST(equal((*a)[g], (*b)[g]), name);
    } else {
      const auto a = folder.load(name), b = image.load(name);
      BOOST_REQUIRE_MESSAGE(a.ok() && b.ok(), name << b.status().message());
      BOOST_TEST(equal(*a, *b), name);
    }
  }
}

void compare_tables(const WeightSource& folder, const WeightSource& image) {
  const auto a = folder.open_engram(0), b = image.open_engram(0);
  BOOST_REQUIRE(a.ok() && b.ok());
  const Range rows = (*b)->rows();
  BOOST_TEST(rows.size() > 0);
  std::vector<int64_t> asked;
  for (int64_t r = rows.begin; r < rows.end; r += 7) asked.push_back(r);
  std::vector<std::byte> x(asked.size() * static_cast<size_t>((*a)->row_bytes())), y(x.size());
  BOOST_REQUIRE((*a)->read(asked, x).ok());
  BOOST_REQUIRE((*b)->read(asked, y).ok());
  BOOST_TEST((x == y));
}

BOOST_AUTO_TEST_CASE(an_image_equals_the_folder_for_every_tensor_and_rank) {
  const test::StoragePlan plans[] = {
      {.matrix = "fp8", .expert = "fp4"},
      {.matrix = "exl3-10-mul1", .expert = "exl3-6-mul1", .wo_a_slices = true},
      {.matrix = "exl3-5-mul1", .expert = "fp8-rows", .old_signs = true, .tables_fp8 = false},
      {.matrix = "bf16", .expert = "f16"},
  };
  for (const test::StoragePlan& plan : plans) {
    BOOST_TEST_CONTEXT(plan.matrix << " and " << plan.expert) {
      for (int world_size : {1, 2}) {
        const Prepared p(plan, world_size);
        for (int rank = 0; rank < world_size; ++rank) {
          const auto folder = open_source(p.model, "", rank, world_size);
          const auto image = open_source(p.model, p.images, rank, world_size);
          BOOST_REQUIRE_MESSAGE(image.ok(), image.status().message());
          compare(**folder, **image);
          (*image)->read_ahead(3);
          compare(**folder, **image);
          (*image)->read_ahead(0);
          compare_tables(**folder, **image);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(an_image_alone_is_enough_or_takes_the_tables_from_a_folder) {
  const Prepared whole({.matrix = "fp8", .expert = "fp4"});
  const auto alone = open_source("", whole.image(1), 1);
  BOOST_REQUIRE_MESSAGE(alone.ok(), alone.status().message());
  const auto folder = open_source(whole.model, "", 1);
  BOOST_TEST((*alone)->fingerprint() == (*folder)->fingerprint());
  BOOST_TEST((*alone)->engram_token_map().size() == 500U);

  const Prepared bare({.matrix = "fp8", .expert = "fp4"}, 2, /*with_engram=*/false);
  BOOST_TEST(!open_source("", bare.image(0), 0).ok());
  const auto with_folder = open_source(bare.model, bare.images, 0);
  BOOST_REQUIRE_MESSAGE(with_folder.ok(), with_folder.status().message());
  BOOST_TEST((*with_folder)->fingerprint() == (*open_source(bare.model, "", 0))->fingerprint());
  const auto table = (*with_folder)->open_engram(0);
  BOOST_REQUIRE(table.ok());
  BOOST_TEST((*table)->rows().size() == 1248);
}

void refused(const Status& status, const std::string& path, const std::string& said) {
  BOOST_REQUIRE(!status.ok());
  BOOST_TEST(status.message().find(path) != std::string::npos, status.message());
  BOOST_TEST(status.message().find(said) != std::string::npos, status.message() << ": " << said);
}

BOOST_AUTO_TEST_CASE(truncated_and_damaged_images_are_refused) {
  const Prepared p({.matrix = "fp8", .expert = "fp4"});
  const std::string path = p.image(0), good = test::read_file(path);
  const auto open_with = [&](const std::string& bytes) {
    test::write_file(path, bytes);
    return open_source(p.model, p.images, 0).status();
  };
  const auto flipped = [&](size_t offset) {
    std::string bytes = good;
    bytes[offset] = static_cast<char>(bytes[offset] ^ 0x10);
    return bytes;
  };
  BOOST_TEST(open_with(good).ok());
  refused(open_with(""), path, "not a prepared image");
  refused(open_with(good.substr(0, 64)), path, "truncated");
  for (size_t kept : {size_t{4096}, good.size() / 2, good.size() - 4096, good.size() - 1}) {
    refused(open_with(good.substr(0, kept)), path, "truncated");
  }
  refused(open_with(good + "x"), path, "truncated");
  refused(open_with(flipped(0)), path, "not a prepared image");
  refused(open_with(flipped(9)), path, "layout");
  refused(open_with(flipped(24)), path, "version");
  refused(open_with(flipped(33)), path, "superblock is damaged");
  refused(open_with(flipped(good.size() - 5000)), path, "directory is damaged");
  refused(open_with("version https://git-lfs.github.com/spec/v1\n"), path, "not a prepared image");
}

BOOST_AUTO_TEST_CASE(a_damaged_section_is_named_when_it_is_loaded) {
  const Prepared p({.matrix = "fp8", .expert = "fp4"});
  const std::string path = p.image(1);
  std::string bytes = test::read_file(path);
  // The first section is the embedding.
  bytes[4096 + 1000] = static_cast<char>(bytes[4096 + 1000] ^ 1);
  test::write_file(path, bytes);
  const auto source = open_source(p.model, p.images, 1);
  BOOST_REQUIRE(source.ok());
  refused((*source)->load("embed").status(), path, "weight embed: damaged");
  BOOST_TEST((*source)->load("norm").ok());
  (*source)->read_ahead(2);
  BOOST_TEST((*source)->load("norm").ok());
  refused((*source)->load("embed").status(), path, "weight embed: damaged");
  BOOST_TEST((*source)->load("norm").ok());  // once more
}

BOOST_AUTO_TEST_CASE(foreign_images_are_refused) {
  const Prepared p({.matrix = "fp8", .expert = "fp4"});
  refused(open_source(p.model, p.image(1), 0).status(), p.image(1), "rank 1 of 2, not of rank 0");
  refused(open_source(p.model, p.image(0), 0, 1).status(), p.image(0), "not of rank 0 of 1");
  refused(open_source(p.model, p.images, 0, 1).status(), "rank-0-of-1.tfimage", "No such file");

  const Prepared other({.matrix = "fp8", .expert = "fp4", .seed = 2});
  refused(open_source(other.model, p.image(0), 0).status(), p.image(0),
          "another model: its weights");
  std::string config = test::small_config();
  config.replace(config.find("\"swiglu_limit\": 10.0"), 20, "\"swiglu_limit\": 12.0");
  test::write_file(p.model + "/config.json", config);
  refused(open_source(p.model, p.image(0), 0).status(), p.image(0),
          "another model: its configuration");
}

BOOST_AUTO_TEST_CASE(tables_of_another_model_are_refused) {
  const Prepared p({.matrix = "fp8", .expert = "fp4"}, 2, /*with_engram=*/false);
  const Prepared other({.matrix = "fp8", .expert = "fp4", .seed = 2});
  WeightSourceOptions options;
  options.prepared_path = p.image(0);
  options.engram_path = other.model;
  options.world_size = 2;
  refused(WeightSource::open(options).status(), other.model,
          "not the one that the image was prepared with");
}

BOOST_AUTO_TEST_CASE(an_impossible_world_size_writes_nothing) {
  const TempFolder folder;
  test::write_model(folder.path("model"), test::small_config(),
                    test::model_tensors(test::small_config(), {}));
  PrepareOptions options;
  options.model_path = folder.path("model");
  options.out_path = folder.path("images");
  options.world_size = 3;
  const Status status = prepare_images(options, {});
  BOOST_REQUIRE(!status.ok());
  BOOST_TEST(status.message().find("world size 3") != std::string::npos);
  BOOST_TEST(!std::filesystem::exists(options.out_path));
}

BOOST_AUTO_TEST_CASE(sections_begin_at_pages_and_no_temporary_file_is_left) {
  const Prepared p({.matrix = "exl3-10-mul1", .expert = "exl3-6-mul1"});
  for (const auto& entry : std::filesystem::directory_iterator(p.images)) {
    BOOST_TEST(entry.path().extension() == ".tfimage");
  }
  const std::string bytes = test::read_file(p.image(0));
  const auto head = std::as_bytes(std::span<const char>(bytes.data(), 4096));
  const Result<ImageSuperblock> block = decode_superblock(head);
  BOOST_REQUIRE(block.ok());
  const Result<ImageDirectory> directory = decode_directory(std::string_view(bytes).substr(
      static_cast<size_t>(block->directory_offset), static_cast<size_t>(block->directory_bytes)));
  BOOST_REQUIRE(directory.ok());
  int64_t last = 0;
  for (const ImageWeight& weight : directory->weights) {
    for (const ImagePart& part : weight.parts) {
      BOOST_TEST(part.section.offset % 4096 == 0);
      BOOST_TEST(part.section.offset > last);  // in the order of a forward pass
      last = part.section.offset;
    }
  }
}

// Whatever a directory's bytes say, decoding it gives a directory or an error.
BOOST_AUTO_TEST_CASE(a_directory_of_any_bytes_is_decoded_or_refused) {
  ImageDirectory d;
  d.model_digest = std::string(64, 'a');
  d.config_text = "{}";
  d.token_map.sha256 = std::string(64, '0');
  ImageWeight weight;
  weight.info.name = "w";
  weight.parts.resize(1);
  weight.parts[0].section.sha256 = std::string(64, '0');
  d.weights = {weight, weight};
  const std::string good = encode_directory(d);
  BOOST_TEST(decode_directory(good).ok());
  for (size_t cut = 0; cut < good.size(); ++cut) {
    BOOST_TEST(!decode_directory(std::string_view(good).substr(0, cut)).ok());
  }
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0xFF);
    (void)decode_directory(bad).ok();
  }
}

}  // namespace
}  // namespace tensorfold
