// What the unit comparisons share. See eval_units_runner.h.
#include "ctl/eval_units_runner.h"

#include <bit>
#include <utility>

#include "kernels/formats.h"

namespace tensorfold::ctl {

UnitMatrix make_panels(std::span<const float> values, int out, int in, WeightLayout layout) {
  UnitMatrix m;
  m.view.layout = layout;
  m.view.out = out;
  m.view.in = in;
  if (layout == WeightLayout::kPanelBf16) {
    m.bf16.resize(static_cast<size_t>(m.view.bytes()) / sizeof(uint16_t));
    m.view.data = m.bf16.data();
    pack_panels(values.data(), out, in, layout, m.bf16.data());
  } else {
    m.f32.resize(static_cast<size_t>(m.view.bytes()) / sizeof(float));
    m.view.data = m.f32.data();
    pack_panels(values.data(), out, in, layout, m.f32.data());
  }
  return m;
}

std::vector<uint16_t> to_bf16(std::span<const float> values) {
  std::vector<uint16_t> out(values.size());
  for (size_t i = 0; i < values.size(); ++i) out[i] = f32_to_bf16(values[i]);
  return out;
}

std::vector<float> from_bf16(std::span<const uint16_t> bits) {
  std::vector<float> out(bits.size());
  for (size_t i = 0; i < bits.size(); ++i) out[i] = bf16_to_f32(bits[i]);
  return out;
}

Result<const StoredTensor*> UnitRunner::take(const std::string& name, std::vector<int64_t> shape) {
  TF_ASSIGN_OR_RETURN(const StoredTensor* tensor, file_.need(name, std::move(shape)));
  touched_.insert(name);
  return tensor;
}

Result<std::vector<float>> UnitRunner::input(const std::string& name, std::vector<int64_t> shape) {
  TF_ASSIGN_OR_RETURN(const StoredTensor* tensor, take(name, std::move(shape)));
  if (!tensor->is_float()) {
    return data_loss(file_.path() + ": tensor '" + name + "' is no float tensor");
  }
  return tensor->floats();
}

Status UnitRunner::compare(const std::string& name, std::span<const float> ours,
                           const char* measure, std::optional<double> bound) {
  if (!has(name)) return ok_status();
  TF_ASSIGN_OR_RETURN(const std::vector<float> theirs, input(name, {}));
  if (theirs.size() != ours.size()) {
    report_.missing(
        "", name, -1,
        std::to_string(theirs.size()) + " values against " + std::to_string(ours.size()));
    return ok_status();
  }
  Figure f;
  f.quantity = name;
  f.measure = measure;
  f.bound = bound;
  f.compared = static_cast<int64_t>(ours.size());
  const std::string_view kind(measure);
  if (kind == "differing") {
    for (size_t i = 0; i < ours.size(); ++i) f.value += ours[i] == theirs[i] ? 0 : 1;
  } else {
    Distance distance;
    distance.add(ours, theirs);
    f.value = kind == "rel" ? distance.rel() : distance.max_abs();
  }
  report_.add(std::move(f));
  return ok_status();
}

Status UnitRunner::compare_exact(const std::string& name, std::span<const int64_t> ours,
                                 bool bounded) {
  if (!has(name)) return ok_status();
  TF_ASSIGN_OR_RETURN(const StoredTensor* tensor, take(name, {}));
  if (!tensor->is_integer() || tensor->count() != static_cast<int64_t>(ours.size())) {
    report_.missing("", name, -1,
                    tensor->shape_text() + " against " + std::to_string(ours.size()) + " values");
    return ok_status();
  }
  Figure f;
  f.quantity = name;
  f.measure = "differing";
  if (bounded) f.bound = 0;
  f.compared = tensor->count();
  for (size_t i = 0; i < ours.size(); ++i) {
    f.value += tensor->i64(static_cast<int64_t>(i)) == ours[i] ? 0 : 1;
  }
  f.note = "of " + std::to_string(tensor->count());
  report_.add(std::move(f));
  return ok_status();
}

std::byte* UnitRunner::workspace(int64_t bytes) {
  constexpr size_t kAlign = 64;
  workspace_.assign(static_cast<size_t>(bytes) + kAlign, std::byte{0});
  const auto at = reinterpret_cast<uintptr_t>(workspace_.data());
  return workspace_.data() + (kAlign - at % kAlign) % kAlign;
}

void UnitRunner::list_untouched() {
  for (const StoredTensor& tensor : file_.tensors()) {
    if (touched_.contains(tensor.name)) continue;
    Figure f;
    f.quantity = tensor.name;
    f.verdict = Verdict::kUnknown;
    f.note = tensor.shape_text();
    report_.add_as_is(std::move(f));
  }
}

}  // namespace tensorfold::ctl
