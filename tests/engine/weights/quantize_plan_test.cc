// Widths of a model's weights, and the keys of its input moments.
#include <boost/test/unit_test.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "engine/weights/quantize_moments.h"
#include "engine/weights/quantize_plan.h"

namespace tensorfold::exl3 {
namespace {

// Eight layers of attention, four experts and a shared one; a head; one drafter stage.
std::vector<PlanItem> small_model() {
  std::vector<PlanItem> items;
  auto block = [&](const std::string& prefix) {
    items.push_back({prefix + "attn.wq_a", 256, 512, 0});
    items.push_back({prefix + "attn.wo_a.slice.0", 128, 512, 0});
    for (int e = 0; e < 4; ++e) {
      const std::string expert = prefix + "ffn.experts." + std::to_string(e) + ".";
      items.push_back({expert + "w1", 256, 512, 0});
      items.push_back({expert + "w2", 512, 256, 0});
    }
    items.push_back({prefix + "ffn.shared_experts.w1", 256, 512, 0});
  };
  for (int l = 0; l < 8; ++l) block("layers." + std::to_string(l) + ".");
  items.push_back({"layers.1.engram.wkv", 512, 256, 0});
  items.push_back({"head", 2048, 512, 0});
  items.push_back({"mtp.0.main_proj", 512, 1024, 0});
  block("mtp.0.");
  return items;
}

int bits_of(const std::vector<PlanItem>& items, std::string_view name) {
  for (const PlanItem& item : items) {
    if (item.name == name) return item.half_bits;
  }
  BOOST_FAIL("no " << name);
  return -1;
}

double average(const std::vector<PlanItem>& items) {
  double bits = 0, values = 0;
  for (const PlanItem& item : items) {
    if (item.name == "head") continue;
    const double count = static_cast<double>(item.out * item.in);
    bits += count * item.half_bits / 2;
    values += count;
  }
  return bits / values;
}

}  // namespace

BOOST_AUTO_TEST_CASE(widths_by_kind_of_weight) {
  auto items = small_model();
  BitsRequest request;
  request.bits = 3;
  request.attention = 6;
  request.expert = 2.5;
  request.shared = 5;
  BOOST_REQUIRE(plan_bits(request, items).ok());
  BOOST_TEST(bits_of(items, "head") == 12);
  BOOST_TEST(bits_of(items, "layers.3.attn.wq_a") == 12);
  BOOST_TEST(bits_of(items, "layers.3.attn.wo_a.slice.0") == 12);
  BOOST_TEST(bits_of(items, "layers.3.ffn.experts.2.w2") == 5);
  BOOST_TEST(bits_of(items, "layers.7.ffn.shared_experts.w1") == 10);
  BOOST_TEST(bits_of(items, "layers.1.engram.wkv") == 6);
  BOOST_TEST(bits_of(items, "mtp.0.main_proj") == 6);
  BOOST_TEST(bits_of(items, "mtp.0.attn.wq_a") == 12);
  request.draft = 4;
  request.head = 16;
  BOOST_REQUIRE(plan_bits(request, items).ok());
  BOOST_TEST(bits_of(items, "head") == 0);
  BOOST_TEST(bits_of(items, "mtp.0.main_proj") == 8);
  BOOST_TEST(bits_of(items, "mtp.0.attn.wq_a") == 8);
  BOOST_TEST(bits_of(items, "mtp.0.ffn.experts.0.w1") == 8);
  BOOST_TEST(bits_of(items, "layers.3.attn.wq_a") == 12);
}

BOOST_AUTO_TEST_CASE(a_fractional_average_is_dealt_within_its_budget) {
  for (double bits : {2.25, 2.9, 3.5, 4.1, 7.99}) {
    auto items = small_model();
    BitsRequest request;
    request.bits = bits;
    request.codebook = Codebook::kMcg;  // no half widths: 3.5 is dealt too
    BOOST_REQUIRE(plan_bits(request, items).ok());
    BOOST_TEST(average(items) <= bits);
    BOOST_TEST(average(items) > bits - 0.1);
    for (const PlanItem& item : items) BOOST_TEST(is_width(item.half_bits, request.codebook));
    // All experts of a layer move together.
    BOOST_TEST(bits_of(items, "layers.4.ffn.experts.0.w1") ==
               bits_of(items, "layers.4.ffn.experts.3.w2"));
    // Attention comes first; the ends of the stack before its middle.
    BOOST_TEST(bits_of(items, "layers.4.attn.wq_a") >= bits_of(items, "layers.4.ffn.experts.0.w1"));
    BOOST_TEST(bits_of(items, "layers.0.ffn.experts.0.w1") >=
               bits_of(items, "layers.4.ffn.experts.0.w1"));
    BOOST_TEST(bits_of(items, "head") == 12);
  }
  auto items = small_model();
  BitsRequest request;
  request.bits = 2.5;  // with mul1 a width of its own
  BOOST_REQUIRE(plan_bits(request, items).ok());
  BOOST_TEST(bits_of(items, "layers.4.ffn.experts.0.w1") == 5);
}

BOOST_AUTO_TEST_CASE(widths_that_do_not_exist_are_named) {
  auto items = small_model();
  BitsRequest request;
  request.bits = 0.5;
  BOOST_TEST(plan_bits(request, items).message().find("bits = 0.5") != std::string::npos);
  request.bits = std::numeric_limits<double>::quiet_NaN();
  BOOST_TEST(!plan_bits(request, items).ok());
  request.bits = 9;
  BOOST_TEST(!plan_bits(request, items).ok());
  request.bits = 3;
  request.expert = 4.5;
  BOOST_TEST(plan_bits(request, items).message().find("expert bits = 4.5") != std::string::npos);
  request.expert = 2.5;
  request.codebook = Codebook::k3inst;
  BOOST_TEST(plan_bits(request, items).message().find("expert bits = 2.5") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(bytes_count_the_padding) {
  // One 128x128 block at 3 bits: 64 tiles of 96 bytes, two scale vectors, one marker.
  BOOST_TEST(exl3_bytes(128, 128, 6) == 64 * 96 + 2 * 256 + 4);
  BOOST_TEST(exl3_bytes(1, 1, 6) == exl3_bytes(128, 128, 6));
  BOOST_TEST(exl3_bytes(129, 128, 6) == 2 * 64 * 96 + 2 * (256 + 128) + 4);
}

BOOST_AUTO_TEST_CASE(moments_are_looked_up_by_weight_and_by_group) {
  using Keys = std::vector<std::string>;
  auto check = [](std::string_view name, const Keys& want) {
    BOOST_TEST(moment_keys(name) == want, boost::test_tools::per_element());
  };
  check("layers.3.attn.wq_a", {"layers.3.attn.wq_a", "layers.3.attn.input"});
  check("mtp.0.attn.wkv", {"mtp.0.attn.wkv", "mtp.0.attn.input"});
  check("layers.2.attn.compressor.wgate",
        {"layers.2.attn.compressor.wgate", "layers.2.attn.input"});
  check("layers.2.attn.indexer.wq_b", {"layers.2.attn.indexer.wq_b", "layers.2.attn.q_latent"});
  check("layers.2.attn.wq_b", {"layers.2.attn.wq_b", "layers.2.attn.q_latent"});
  check("layers.9.ffn.experts.17.w3", {"layers.9.ffn.experts.17.w3", "layers.9.ffn.input"});
  check("layers.9.ffn.experts.17.w2", {"layers.9.ffn.experts.17.w2", "layers.9.ffn.experts.w2"});
  check("layers.9.ffn.shared_experts.w1", {"layers.9.ffn.shared_experts.w1", "layers.9.ffn.input"});
  check("layers.9.ffn.shared_experts.w2", {"layers.9.ffn.shared_experts.w2"});
  check("layers.1.engram.wkv", {"layers.1.engram.wkv"});
  check("head", {"head"});
}

}  // namespace tensorfold::exl3
