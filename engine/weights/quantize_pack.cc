// quantize_pack() (see quantize_pack.h): decides for every tensor of the input whether it is
// copied, converted or replaced, deals the results to files, and writes them in one pass.
#include "engine/weights/quantize_pack.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "engine/weights/checkpoint.h"
#include "engine/weights/ldlq.h"
#include "engine/weights/quantize_engram.h"
#include "engine/weights/quantize_folder.h"
#include "engine/weights/quantize_moments.h"
#include "engine/weights/safetensors.h"
#include "engine/weights/stored_weight.h"

namespace tensorfold::exl3 {
namespace {

using Declaration = SafetensorsWriter::Declaration;

constexpr int64_t kCopyChunkBytes = int64_t{8} << 20;
constexpr int kPlainBytesPerValue = 2;
constexpr double kHundredths = 100;

// One layer to quantize: rows of one stored part.
struct Unit {
  const StoredPart* part = nullptr;
  Range rows;
};

enum class Origin : unsigned char { kCopy, kLayer, kEngram };

// Tensors that are written together, in this order.
struct Output {
  Origin origin = Origin::kCopy;
  const TensorInfo* source = nullptr;  // kCopy, kEngram
  size_t unit = 0;                     // kLayer
  std::vector<Declaration> tensors;
  int64_t bytes = 0;
};

int64_t bytes_of_declaration(const Declaration& d) {
  int64_t bytes = dtype_bytes(d.dtype);
  for (int64_t n : d.shape) bytes *= n;
  return bytes;
}

std::string file_name(size_t index, size_t count) {
  if (count == 1) return "model.safetensors";
  char text[64];
  std::snprintf(text, sizeof(text), "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return text;
}

class PackJob {
 public:
  PackJob(const PackRequest& request, const std::function<void(const PackedWeight&)>& progress)
      : request_(request), progress_(progress) {}

  Result<PackReport> run() {
    TF_ASSIGN_OR_RETURN(source_, Checkpoint::open(request_.in, ""));
    TF_RETURN_IF_ERROR(complete_enough());
    if (!request_.moments_path.empty()) {
      TF_ASSIGN_OR_RETURN(MomentsFile moments, MomentsFile::open(request_.moments_path));
      moments_ = std::make_unique<MomentsFile>(std::move(moments));
    }
    list_units();
    TF_RETURN_IF_ERROR(plan_bits(request_.bits, plan_));
    keep_small_ones();
    TF_RETURN_IF_ERROR(check_moments());
    list_outputs();
    TF_ASSIGN_OR_RETURN(folder_, PackFolder::create(request_.out));
    TF_RETURN_IF_ERROR(write_files());
    TF_RETURN_IF_ERROR(write_config());
    TF_RETURN_IF_ERROR(folder_->copy_side_files(request_.in));
    TF_RETURN_IF_ERROR(read_back());
    TF_RETURN_IF_ERROR(folder_->commit());
    return std::move(report_);
  }

 private:
  // Missing weights cannot be quantized; unknown tensors are copied.
  Status complete_enough() const {
    if (source_->missing().empty()) return ok_status();
    return data_loss(request_.in + ": " + source_->missing().front() + " is missing" +
                     (source_->missing().size() == 1
                          ? std::string()
                          : ", and " + std::to_string(source_->missing().size() - 1) + " more"));
  }

  void add_unit(std::string name, const StoredPart& part, Range rows) {
    plan_.push_back({std::move(name), rows.size(), part.in, 0});
    units_.push_back({&part, rows});
  }

  void list_units() {
    for (const Checkpoint::Entry& entry : source_->entries()) {
      if (entry.spec.weight_class == WeightClass::kPlain) continue;
      const int64_t group = entry.spec.group_rows;
      const auto& parts = entry.stored.parts;
      if (group == 0) {
        add_unit(entry.spec.name, parts.front(), {0, parts.front().out});
        continue;
      }
      for (int64_t g = 0; g < entry.spec.out / group; ++g) {
        const bool sliced = parts.size() > 1 || parts.front().out == group;
        const StoredPart& part = sliced ? parts[static_cast<size_t>(g)] : parts.front();
        const Range rows = sliced ? Range{0, group} : Range{g * group, (g + 1) * group};
        add_unit(entry.spec.name + ".slice." + std::to_string(g), part, rows);
      }
    }
  }

  // Padding can cost more than the bits save. A weight stored in several slices is kept whole.
  void keep_small_ones() {
    std::set<const StoredPart*> kept;
    for (size_t i = 0; i < plan_.size(); ++i) {
      PlanItem& item = plan_[i];
      const int64_t plain = kPlainBytesPerValue * item.out * item.in;
      if (item.half_bits != 0 && exl3_bytes(item.out, item.in, item.half_bits) >= plain) {
        item.half_bits = 0;
      }
      if (item.half_bits == 0) kept.insert(units_[i].part);
    }
    for (size_t i = 0; i < plan_.size(); ++i) {
      if (kept.contains(units_[i].part)) plan_[i].half_bits = 0;
    }
  }

  // Reads every matrix of moments once before hours of work depend on it.
  Status check_moments() const {
    if (moments_ == nullptr) return ok_status();
    for (const PlanItem& item : plan_) {
      if (item.half_bits == 0) continue;
      auto found = moments_->find(item.name, item.in);
      if (!found.ok()) return found.status();
    }
    return ok_status();
  }

  void add_output(Output output) {
    for (const Declaration& d : output.tensors) output.bytes += bytes_of_declaration(d);
    outputs_.push_back(std::move(output));
  }

  void list_outputs() {
    std::set<const TensorInfo*> replaced;
    for (size_t i = 0; i < units_.size(); ++i) {
      if (plan_[i].half_bits == 0) continue;
      const StoredPart& p = *units_[i].part;
      for (const TensorInfo* t : {p.data, p.scale, p.suh, p.svh, p.marker}) replaced.insert(t);
    }
    std::set<std::string> tables;
    const auto engram_layers = source_->config().engram.layers.size();
    for (size_t i = 0; i < engram_layers; ++i) {
      tables.insert(engram_table_name(source_->config(), static_cast<int>(i)) + ".weight");
    }
    for (const TensorInfo& t : source_->files().tensors()) {
      report_.bytes_in += t.bytes;
      if (replaced.contains(&t)) continue;
      if (tables.contains(t.name) && engram_convertible(t)) {
        add_table(t);
      } else {
        ++report_.copied_tensors;
        Output copy;
        copy.source = &t;
        copy.tensors = {{t.name, t.dtype, t.shape}};
        add_output(std::move(copy));
      }
    }
    for (size_t i = 0; i < units_.size(); ++i) {
      if (plan_[i].half_bits != 0) add_layer(i);
    }
  }

  void add_table(const TensorInfo& t) {
    ++report_.converted_tables;
    const std::string base = t.name.substr(0, t.name.rfind('.'));
    Output output;
    output.origin = Origin::kEngram;
    output.source = &t;
    output.tensors = {{t.name, DType::kF8E4M3, t.shape},
                      {base + ".scale", DType::kF8E8M0, {t.shape[0], t.shape[1] / kScaleBlock}}};
    add_output(std::move(output));
  }

  void add_layer(size_t unit) {
    const PlanItem& item = plan_[unit];
    const int64_t n = (item.out + kDimMultiple - 1) / kDimMultiple * kDimMultiple;
    const int64_t k = (item.in + kDimMultiple - 1) / kDimMultiple * kDimMultiple;
    Output output;
    output.origin = Origin::kLayer;
    output.unit = unit;
    output.tensors = {{item.name + ".trellis",
                       DType::kI16,
                       {k / kTileSide, n / kTileSide, tile_words(item.half_bits)}},
                      {item.name + ".suh", DType::kF16, {k}},
                      {item.name + ".svh", DType::kF16, {n}}};
    if (request_.bits.codebook != Codebook::k3inst) {
      output.tensors.push_back(
          {item.name + "." + std::string(codebook_name(request_.bits.codebook)), DType::kI32, {}});
    }
    add_output(std::move(output));
  }

  // Outputs in files of at most shard_bytes_max (one output may be larger).
  std::vector<std::vector<const Output*>> shards() const {
    std::vector<std::vector<const Output*>> files(1);
    int64_t bytes = 0;
    for (const Output& output : outputs_) {
      if (bytes > 0 && bytes + output.bytes > request_.shard_bytes_max) {
        files.emplace_back();
        bytes = 0;
      }
      files.back().push_back(&output);
      bytes += output.bytes;
    }
    return files;
  }

  Status write_files() {
    const auto files = shards();
    Json map = Json::object({});
    for (size_t i = 0; i < files.size(); ++i) {
      const std::string name = file_name(i, files.size());
      std::vector<Declaration> declarations;
      for (const Output* output : files[i]) {
        for (const Declaration& d : output->tensors) {
          declarations.push_back(d);
          map.set(d.name, Json::string(name));
        }
        report_.bytes_out += output->bytes;
      }
      TF_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsWriter> writer,
                          SafetensorsWriter::create(folder_->path() + "/" + name,
                                                    std::move(declarations), {{"format", "pt"}}));
      for (const Output* output : files[i]) TF_RETURN_IF_ERROR(write_output(*output, *writer));
      TF_RETURN_IF_ERROR(writer->commit());
    }
    report_.files = static_cast<int>(files.size());
    report_.weights = weights_in_order();
    if (files.size() == 1) return ok_status();
    Json metadata = Json::object({});
    metadata.set("total_size", Json::integer(report_.bytes_out));
    Json index = Json::object({});
    index.set("metadata", std::move(metadata));
    index.set("weight_map", std::move(map));
    return folder_->write_text("model.safetensors.index.json", dump_json_compact(index));
  }

  Status write_output(const Output& output, SafetensorsWriter& writer) {
    switch (output.origin) {
      case Origin::kCopy:
        return copy(*output.source, writer);
      case Origin::kEngram:
        TF_RETURN_IF_ERROR(append_engram_values(source_->files(), *output.source, writer));
        return append_engram_scales(source_->files(), *output.source, writer);
      case Origin::kLayer:
        return write_layer(output.unit, writer);
    }
    return ok_status();
  }

  Status copy(const TensorInfo& t, SafetensorsWriter& writer) const {
    std::vector<std::byte> chunk;
    for (int64_t at = 0; at < t.bytes; at += kCopyChunkBytes) {
      chunk.resize(static_cast<size_t>(std::min(kCopyChunkBytes, t.bytes - at)));
      TF_RETURN_IF_ERROR(source_->files().read(t, at, chunk));
      TF_RETURN_IF_ERROR(writer.append(chunk));
    }
    return ok_status();
  }

  Status write_layer(size_t unit, SafetensorsWriter& writer) {
    const PlanItem& item = plan_[unit];
    const Unit& u = units_[unit];
    TF_ASSIGN_OR_RETURN(const Weight stored,
                        read_stored(source_->files(), *u.part, u.rows, Range{0, u.part->in}));
    std::vector<float> values(static_cast<size_t>(item.out * item.in));
    dequantize(stored, values);
    std::optional<InputMoments> moments;
    if (moments_ != nullptr) {
      TF_ASSIGN_OR_RETURN(moments, moments_->find(item.name, item.in));
    }
    QuantizeOptions options;
    options.half_bits = item.half_bits;
    options.codebook = request_.bits.codebook;
    options.out_scales = request_.out_scales;
    options.seed = seed_of(item.name);
    options.threads = request_.threads;
    auto layer = quantize_layer(values, item.out, item.in, moments ? &*moments : nullptr, options);
    if (!layer.ok()) {
      return layer.status().with_context(source_->files().where(*u.part->data));
    }
    const uint32_t marker = codebook_marker(item_codebook());
    TF_RETURN_IF_ERROR(writer.append(std::as_bytes(std::span(layer->trellis))));
    TF_RETURN_IF_ERROR(writer.append(std::as_bytes(std::span(layer->suh))));
    TF_RETURN_IF_ERROR(writer.append(std::as_bytes(std::span(layer->svh))));
    if (marker != 0) TF_RETURN_IF_ERROR(writer.append(std::as_bytes(std::span(&marker, 1))));
    PackedWeight& done = done_[unit] = {
        item.name,   item.out,           item.in, item.half_bits, layer->bits_per_weight(),
        layer->nmse, layer->used_moments};
    if (progress_) progress_(done);
    return ok_status();
  }

  Codebook item_codebook() const { return request_.bits.codebook; }

  std::vector<PackedWeight> weights_in_order() {
    std::vector<PackedWeight> all;
    double bits = 0, values = 0;
    for (size_t i = 0; i < plan_.size(); ++i) {
      const PlanItem& item = plan_[i];
      if (item.half_bits == 0) {
        const StoredPart& p = *units_[i].part;
        const double stored = static_cast<double>(p.data->bytes + (p.scale ? p.scale->bytes : 0));
        const double all_values = static_cast<double>(p.out) * static_cast<double>(p.in);
        all.push_back({item.name, item.out, item.in, 0, 8 * stored / all_values, 0, false});
        continue;
      }
      all.push_back(done_[i]);
      if (item.name == "head") continue;
      const double count = static_cast<double>(item.out) * static_cast<double>(item.in);
      bits += count * item.half_bits / 2;
      values += count;
    }
    report_.average_bits = values > 0 ? std::round(bits / values * kHundredths) / kHundredths : 0;
    return all;
  }

  Status write_config() {
    constexpr std::string_view kScales[] = {"auto", "always", "never"};
    Json q = Json::object({});
    q.set("quant_method", Json::string("exl3"));
    q.set("version", Json::string(TF_VERSION));
    q.set("bits", Json::real(report_.average_bits));
    for (const PackedWeight& w : report_.weights) {
      if (w.name != "head") continue;
      const double head = w.half_bits == 0 ? kBitsPlain : w.half_bits / 2.0;
      q.set("head_bits", head == std::floor(head) ? Json::integer(static_cast<int64_t>(head))
                                                  : Json::real(head));
    }
    q.set("out_scales",
          Json::string(std::string(kScales[static_cast<size_t>(request_.out_scales)])));
    q.set("codebook", Json::string(std::string(codebook_name(item_codebook()))));
    auto text = with_quantization(source_->config_text(), std::move(q));
    if (!text.ok()) return text.status().with_context(request_.in + "/config.json");
    return folder_->write_text("config.json", *text);
  }

  Status read_back() const {
    TF_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> pack,
                        Checkpoint::open(folder_->path(), ""));
    if (!pack->missing().empty()) {
      return internal_error("the written pack lacks " + pack->missing().front());
    }
    return ok_status();
  }

  const PackRequest& request_;
  const std::function<void(const PackedWeight&)>& progress_;
  std::unique_ptr<Checkpoint> source_;
  std::unique_ptr<MomentsFile> moments_;
  std::vector<PlanItem> plan_;  // one per unit
  std::vector<Unit> units_;
  std::vector<Output> outputs_;
  std::unique_ptr<PackFolder> folder_;
  std::map<size_t, PackedWeight> done_;
  PackReport report_;
};

}  // namespace

Result<PackReport> quantize_pack(const PackRequest& request,
                                 const std::function<void(const PackedWeight&)>& progress) {
  if (request.threads < 1 || request.threads > kQuantizeThreadsMax) {
    return invalid_argument("threads = " + std::to_string(request.threads) + " is outside 1 to " +
                            std::to_string(kQuantizeThreadsMax));
  }
  return PackJob(request, progress).run();
}

}  // namespace tensorfold::exl3
