// Widths of the weights (see quantize_plan.h).
#include "engine/weights/quantize_plan.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <vector>

namespace tensorfold::exl3 {
namespace {

constexpr int kHalfBitsOfOneBit = 2;

bool is_draft(std::string_view name) { return name.starts_with("mtp."); }
bool holds(std::string_view name, std::string_view part) {
  return name.find(part) != std::string_view::npos;
}

std::string bits_text(double bits) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), bits);
  return {text, end.ptr};
}

// A wish -> half bits; 0 for "as it is stored".
Result<int> width_of(double bits, Codebook codebook, std::string_view option) {
  if (bits == kBitsPlain) return 0;
  const double twice = 2 * bits;
  if (twice == std::floor(twice) && twice >= kHalfBitsMin && twice <= kHalfBitsMax) {
    const int half_bits = static_cast<int>(twice);
    if (is_width(half_bits, codebook)) return half_bits;
  }
  return invalid_argument(std::string(option) + " = " + bits_text(bits) +
                          " is not a width: use 1 to 8, with mul1 also 1.5, 2.5 and 3.5, or 16 to "
                          "leave the weight as it is");
}

struct Wish {
  std::optional<double> bits;
  std::string_view option;
};

// The wish that decides `name`'s width; none: it takes its share of the budget.
Wish wish_for(const BitsRequest& r, std::string_view name) {
  if (name == "head") return {r.head.value_or(kHeadBitsDefault), "head bits"};
  if (is_draft(name) && r.draft) return {r.draft, "draft bits"};
  if (holds(name, ".attn.")) return {r.attention, "attention bits"};
  if (holds(name, ".ffn.experts.")) return {r.expert, "expert bits"};
  if (holds(name, ".ffn.shared_experts.")) return {r.shared, "shared expert bits"};
  return {};
}

// "layers.12." -> 12, "mtp.1." -> layers + 1; -1 for neither.
int layer_of(std::string_view name, int layers) {
  const bool draft = is_draft(name);
  const std::string_view prefix = draft ? "mtp." : "layers.";
  if (!name.starts_with(prefix)) return -1;
  int number = -1;
  std::from_chars(name.data() + prefix.size(), name.data() + name.size(), number);
  return draft ? layers + number : number;
}

struct Group {
  int priority = 0, layer = 0;
  int64_t values = 0;
  std::vector<size_t> items;
};

// What moves together: a layer's attention, its routed experts, its shared expert; else one weight.
std::string group_name(std::string_view name) {
  for (std::string_view part : {".attn.", ".ffn.experts.", ".ffn.shared_experts."}) {
    const size_t at = name.find(part);
    if (at != std::string_view::npos) return std::string(name.substr(0, at + part.size()));
  }
  return std::string(name);
}

std::vector<Group> groups_of(std::span<const PlanItem> items, std::span<const size_t> budgeted) {
  int layers = 0;
  for (size_t i : budgeted) {
    if (!is_draft(items[i].name)) layers = std::max(layers, layer_of(items[i].name, 0) + 1);
  }
  std::map<std::string, Group> by_name;
  int last = 0;
  for (size_t i : budgeted) {
    Group& group = by_name[group_name(items[i].name)];
    group.priority = holds(items[i].name, ".attn.") ? 1 : 0;
    group.layer = layer_of(items[i].name, layers);
    group.values += items[i].out * items[i].in;
    group.items.push_back(i);
    last = std::max(last, group.layer);
  }
  std::vector<Group> groups;
  for (auto& [name, group] : by_name) groups.push_back(std::move(group));
  auto rank = [last](const Group& g) {
    return std::tuple(-g.priority, std::min(g.layer, last - g.layer), g.layer, g.items.front());
  };
  std::sort(groups.begin(), groups.end(),
            [&](const Group& a, const Group& b) { return rank(a) < rank(b); });
  return groups;
}

// floor(bits) everywhere, then one bit more to group after group while the budget lasts.
void deal(double bits, std::span<PlanItem> items, std::span<const size_t> budgeted) {
  const int floor_half_bits = static_cast<int>(std::floor(bits)) * kHalfBitsOfOneBit;
  double values = 0;
  for (size_t i : budgeted) {
    items[i].half_bits = floor_half_bits;
    values += static_cast<double>(items[i].out) * static_cast<double>(items[i].in);
  }
  double left = std::floor(bits * values) - std::floor(bits) * values;
  const std::vector<Group> groups = groups_of(items, budgeted);
  for (bool any = true; any;) {
    any = false;
    for (const Group& group : groups) {
      if (static_cast<double>(group.values) > left) continue;
      if (items[group.items.front()].half_bits >= kHalfBitsMax) continue;
      for (size_t i : group.items) items[i].half_bits += kHalfBitsOfOneBit;
      left -= static_cast<double>(group.values);
      any = true;
    }
  }
}

}  // namespace

Status plan_bits(const BitsRequest& request, std::span<PlanItem> items) {
  if (!(request.bits >= 1 && request.bits <= 8)) {
    return invalid_argument("bits = " + bits_text(request.bits) + " is outside 1 to 8");
  }
  std::vector<size_t> budgeted;
  for (size_t i = 0; i < items.size(); ++i) {
    const Wish wish = wish_for(request, items[i].name);
    if (!wish.bits) {
      budgeted.push_back(i);
      continue;
    }
    TF_ASSIGN_OR_RETURN(items[i].half_bits, width_of(*wish.bits, request.codebook, wish.option));
  }
  const Result<int> uniform = width_of(request.bits, request.codebook, "bits");
  if (uniform.ok()) {
    for (size_t i : budgeted) items[i].half_bits = *uniform;
  } else {
    deal(request.bits, items, budgeted);
  }
  return ok_status();
}

int64_t exl3_bytes(int64_t out, int64_t in, int half_bits) {
  const int64_t n = (out + kDimMultiple - 1) / kDimMultiple * kDimMultiple;
  const int64_t k = (in + kDimMultiple - 1) / kDimMultiple * kDimMultiple;
  return n * k / kTileValues * tile_bytes(half_bits) + 2 * (n + k) + 4;
}

}  // namespace tensorfold::exl3
