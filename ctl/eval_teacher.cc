// The teacher-forced record: generator and the sequence to run. See eval_teacher.h; the comparison
// is in eval_teacher_compare.cc.
#include "ctl/eval_teacher.h"

#include <algorithm>
#include <bit>
#include <charconv>

namespace tensorfold::ctl {
namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;
constexpr uint64_t kPreStream = uint64_t{1} << 31;
constexpr uint64_t kIdStream = kPreStream + (uint64_t{1} << 30);
constexpr uint64_t kIdFirst = 3, kIdCount = 900;
// Steps after the prompt when no score tensor tells the prompt's length.
constexpr int64_t kUsualSteps = 4;

Result<uint64_t> stream_of(const TensorFile& file) {
  const auto it = file.metadata().find("k");
  if (it == file.metadata().end()) {
    return data_loss(file.path() + ": metadata has no 'k' (the generator's stream)");
  }
  uint32_t k = 0;
  const char* end = it->second.data() + it->second.size();
  const auto parsed = std::from_chars(it->second.data(), end, k);
  if (parsed.ec != std::errc() || parsed.ptr != end) {
    return data_loss(file.path() + ": metadata 'k' is '" + it->second + "', not a number");
  }
  return static_cast<uint64_t>(k) << 32;
}

// Scores of the prompt's last row have one value per visible entry: they tell its length.
int64_t prompt_rows(const TensorFile& file, const std::string& prefix, const ModelConfig& config,
                    int64_t positions) {
  int64_t rows = 0;
  for (int layer = 0; layer < config.layers; ++layer) {
    const StoredTensor* scores = file.find(prefix + "score_prefill_last." + std::to_string(layer));
    if (scores != nullptr) rows = std::max(rows, scores->count() * config.ratio(layer));
  }
  return rows > 0 ? rows : positions - kUsualSteps;
}

}  // namespace

uint64_t splitmix(uint64_t s) {
  uint64_t z = s * kGolden;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

float TeacherInputs::x(int layer, int64_t t, int c, int i) const {
  const uint64_t row =
      static_cast<uint64_t>(layer) * static_cast<uint64_t>(positions) + static_cast<uint64_t>(t);
  const uint64_t at = (row * static_cast<uint64_t>(streams) + static_cast<uint64_t>(c)) *
                          static_cast<uint64_t>(hidden) +
                      static_cast<uint64_t>(i);
  return static_cast<float>(static_cast<int>(splitmix(stream + at) >> 56) - 128) / 64.0f;
}

float TeacherInputs::pre(int layer, int64_t t, int c) const {
  const uint64_t row =
      static_cast<uint64_t>(layer) * static_cast<uint64_t>(positions) + static_cast<uint64_t>(t);
  const uint64_t at = row * static_cast<uint64_t>(streams) + static_cast<uint64_t>(c);
  return static_cast<float>(static_cast<int>(splitmix(stream + kPreStream + at) >> 56) + 1) /
         256.0f;
}

int32_t TeacherInputs::id(int64_t t) const {
  const uint64_t z = splitmix(stream + kIdStream + static_cast<uint64_t>(t));
  return static_cast<int32_t>(kIdFirst + (z >> 32) % kIdCount);
}

void TeacherInputs::fill(int layer, int64_t t, std::span<uint16_t> x_bits,
                         std::span<float> pre_out) const {
  for (size_t j = 0; j < x_bits.size(); ++j) {
    const size_t width = static_cast<size_t>(hidden);
    const float value = x(layer, t, static_cast<int>(j / width), static_cast<int>(j % width));
    x_bits[j] = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
  }
  for (size_t c = 0; c < pre_out.size(); ++c) pre_out[c] = pre(layer, t, static_cast<int>(c));
}

bool is_teacher_forced(const TensorFile& file) {
  if (file.find("ids") == nullptr || file.find("rows") == nullptr) return false;
  return std::any_of(file.tensors().begin(), file.tensors().end(),
                     [](const StoredTensor& t) { return t.name.ends_with(".X_out"); });
}

Result<TeacherSpec> teacher_spec(const TensorFile& file, std::string_view kind,
                                 const ModelConfig& config, int64_t chunk) {
  TeacherSpec spec;
  spec.prefix = std::string(kind) + ".";
  TF_ASSIGN_OR_RETURN(const StoredTensor* ids, file.need("ids", {-1}));
  TF_ASSIGN_OR_RETURN(const StoredTensor* rows, file.need("rows", {-1}));
  TF_ASSIGN_OR_RETURN(
      const StoredTensor* x_out,
      file.need(spec.prefix + "X_out", {config.layers, -1, config.hc_mult, config.hidden}));
  TF_ASSIGN_OR_RETURN(spec.inputs.stream, stream_of(file));
  if (!ids->is_integer() || !rows->is_integer() || rows->count() != x_out->dim(1)) {
    return data_loss(file.path() + ": 'rows' (" + rows->shape_text() + ") and '" + x_out->name +
                     "' (" + x_out->shape_text() + ") do not go together");
  }
  spec.inputs.positions = ids->count();
  spec.inputs.streams = config.hc_mult;
  spec.inputs.hidden = config.hidden;
  const int64_t n = prompt_rows(file, spec.prefix, config, ids->count());
  if (n < 1 || n > ids->count() || ids->count() > kEvalPromptTokensMax) {
    return data_loss(file.path() + ": 'ids' holds " + std::to_string(ids->count()) +
                     " ids, its scores tell of a prompt of " + std::to_string(n));
  }
  for (int64_t t = 0; t < ids->count(); ++t) {
    auto& list = t < n ? spec.sequence.prompt : spec.sequence.steps;
    list.push_back(static_cast<int32_t>(ids->i64(t)));
  }
  for (const int64_t row : rows->integers()) {
    if (row < 0 || row >= ids->count()) {
      return data_loss(file.path() + ": 'rows' names position " + std::to_string(row) + " of " +
                       std::to_string(ids->count()));
    }
  }
  spec.sequence.chunk = chunk;
  spec.sequence.kept_rows = n;
  spec.sequence.fill = [inputs = spec.inputs](int layer, int64_t position,
                                              std::span<uint16_t> streams, std::span<float> pre) {
    inputs.fill(layer, position, streams, pre);
  };
  return spec;
}

}  // namespace tensorfold::ctl
