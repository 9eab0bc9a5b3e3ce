// WeightSource over a prepared image (see image.h). open() trusts nothing: superblock, directory,
// every section's place and size are checked against the file, the configuration and the table of
// weights before anything is loaded; load() checks the section's SHA-256.
#include <sys/stat.h>

#include <algorithm>
#include <unordered_map>

#include "engine/weights/image.h"
#include "engine/weights/image_format.h"
#include "engine/weights/read_ahead.h"
#include "engine/weights/section_reader.h"
#include "engine/weights/source_makers.h"
#include "engine/weights/token_map.h"

namespace tensorfold {
namespace {

struct OpenImage {
  std::shared_ptr<const ReadFile> file;
  ImageDirectory directory;
  ModelConfig config;
  Partition part;
  std::vector<int32_t> token_map;
  std::vector<std::optional<EngramStorage>> tables;
  std::string fingerprint;
};

Status check_section(const ImageSection& s, int64_t limit, const std::string& what) {
  if (s.offset % kImageSectionAlignBytes == 0 && s.offset >= kImageSectionAlignBytes &&
      s.offset <= limit && s.bytes <= limit - s.offset) {
    return ok_status();
  }
  return data_loss(what + ": its section lies outside the file");
}

// What the slice of this rank must look like.
Status check_weight(const OpenImage& image, const WeightSpec& spec, const ImageWeight& weight,
                    int64_t limit) {
  const std::string what = "weight " + spec.name;
  const TensorSlice slice = slice_of(spec.name, image.config, image.part, spec.out, spec.in);
  size_t parts = slice.axis == SliceAxis::kAbsent ? 0 : 1;
  int64_t out = slice.axis == SliceAxis::kInput ? spec.out : slice.range.size();
  const int64_t in = slice.axis == SliceAxis::kInput ? slice.range.size() : spec.in;
  if (spec.group_rows != 0) {
    parts = static_cast<size_t>(image.part.o_groups.size());
    out = spec.group_rows;
  }
  if (weight.info.out != spec.out || weight.info.in != spec.in || weight.parts.size() != parts) {
    return data_loss(what + ": its shape is not that of the configuration");
  }
  for (const ImagePart& p : weight.parts) {
    const bool exl3 = p.kind == WeightKind::kExl3;
    const auto padded = [](int64_t n) {
      return (n + exl3::kDimMultiple - 1) / exl3::kDimMultiple * exl3::kDimMultiple;
    };
    const bool fits =
        p.out == out && p.in == in && kind_allowed(spec.weight_class, p.kind) &&
        (!exl3 || (p.padded_out == padded(out) && p.padded_in == padded(in) &&
                   exl3::is_width(p.half_bits, p.codebook))) &&
        (p.kind != WeightKind::kFp8 || p.scale_rows == 1 || p.scale_rows == kScaleBlock) &&
        p.section.bytes == section_bytes(p);
    if (!fits) return data_loss(what + ": its slice is not that of this rank");
    TF_RETURN_IF_ERROR(check_section(p.section, limit, what));
  }
  return ok_status();
}

Status check_weights(const OpenImage& image, int64_t limit) {
  size_t next = 0;
  const std::vector<ImageWeight>& weights = image.directory.weights;
  for (const WeightSpec& spec : weight_table(image.config)) {
    if (next < weights.size() && weights[next].info.name == spec.name) {
      TF_RETURN_IF_ERROR(check_weight(image, spec, weights[next], limit));
      ++next;
    } else if (!spec.optional) {
      return data_loss("weight " + spec.name + ": missing");
    }
  }
  if (next == weights.size()) return ok_status();
  return data_loss("weight " + weights[next].info.name + ": not one of this model");
}

Status find_image_tables(OpenImage& image, int64_t limit) {
  const EngramConfig& engram = image.config.engram;
  image.tables.resize(engram.layers.size());
  for (const ImageTable& t : image.directory.tables) {
    const std::string what = "Engram table " + std::to_string(t.index);
    if (t.index >= static_cast<int>(engram.layers.size())) {
      return data_loss(what + ": not one of this model");
    }
    const std::string name = engram_table_name(image.config, t.index);
    EngramStorage storage;
    storage.kind = t.kind;
    storage.rows = t.rows;
    storage.width = t.width;
    const int64_t value = t.kind == WeightKind::kFp8 ? 1 : t.kind == WeightKind::kF32 ? 4 : 2;
    const int64_t scales = t.kind == WeightKind::kFp8 ? t.width / kScaleBlock : 0;
    const int64_t row_bytes = value * t.width + scales;
    storage.segments = {{image.file, t.section.offset, row_bytes, row_bytes, name}};
    if (t.width != engram.row_width || t.rows.size() > limit / row_bytes ||
        t.section.bytes != t.rows.size() * row_bytes) {
      return data_loss(what + ": its section has another size than its rows");
    }
    TF_RETURN_IF_ERROR(check_section(t.section, limit, what));
    image.tables[static_cast<size_t>(t.index)] = std::move(storage);
  }
  return ok_status();
}

Status read_token_map(OpenImage& image, int64_t limit) {
  if (image.config.engram.layers.empty()) return ok_status();
  const ImageSection& s = image.directory.token_map;
  TF_RETURN_IF_ERROR(check_section(s, limit, "token map"));
  if (s.bytes != int64_t{4} * image.config.vocab_size) {
    return data_loss("token map: not one entry for each token");
  }
  image.token_map.resize(static_cast<size_t>(image.config.vocab_size));
  const auto bytes = std::as_writable_bytes(std::span<int32_t>(image.token_map));
  TF_RETURN_IF_ERROR(image.file->read(s.offset, bytes));
  if (sha256_hex(bytes) != s.sha256) return data_loss("token map: damaged (its SHA-256 differs)");
  return check_token_map(image.config, image.token_map, "token map");
}

Status read_directory(OpenImage& image) {
  const int64_t size = image.file->size();
  std::vector<std::byte> head(
      static_cast<size_t>(std::min<int64_t>(size, kImageSectionAlignBytes)));
  TF_RETURN_IF_ERROR(image.file->read(0, head));
  TF_ASSIGN_OR_RETURN(const ImageSuperblock block, decode_superblock(head));
  if (block.file_bytes != size || block.directory_offset > size ||
      block.directory_bytes > size - block.directory_offset) {
    return data_loss("truncated: " + std::to_string(size) + " bytes, it was written with " +
                     std::to_string(block.file_bytes));
  }
  std::string bytes(static_cast<size_t>(block.directory_bytes), '\0');
  TF_RETURN_IF_ERROR(
      image.file->read(block.directory_offset, std::as_writable_bytes(std::span<char>(bytes))));
  if (sha256_hex(bytes_of(bytes)) != block.directory_sha256) {
    return data_loss("the directory is damaged (its SHA-256 differs)");
  }
  TF_ASSIGN_OR_RETURN(image.directory, decode_directory(bytes));
  TF_ASSIGN_OR_RETURN(const Json config,
                      parse_json(image.directory.config_text, JsonDialect::kPython));
  TF_ASSIGN_OR_RETURN(image.config, parse_model_config(config));
  TF_ASSIGN_OR_RETURN(image.part,
                      partition(image.config, image.directory.rank, image.directory.world_size));
  TF_RETURN_IF_ERROR(check_weights(image, size));
  TF_RETURN_IF_ERROR(read_token_map(image, size));
  return find_image_tables(image, size);
}

Status check_rank(const OpenImage& image, const WeightSourceOptions& options) {
  const ImageDirectory& d = image.directory;
  if (d.rank == options.rank && d.world_size == options.world_size) return ok_status();
  return invalid_argument("an image of rank " + std::to_string(d.rank) + " of " +
                          std::to_string(d.world_size) + ", not of rank " +
                          std::to_string(options.rank) + " of " +
                          std::to_string(options.world_size));
}

// When the model folder is there too, the image must have been made of it.
Status check_model(const OpenImage& image, const std::string& folder) {
  const std::string config_path = folder + "/config.json";
  struct stat info = {};
  if (folder.empty() || ::stat(config_path.c_str(), &info) != 0) return ok_status();
  TF_ASSIGN_OR_RETURN(const std::string config,
                      read_text_file(config_path, kImageDirectoryBytesMax));
  if (config != image.directory.config_text) {
    return invalid_argument("an image of another model: its configuration is not that of " +
                            config_path + " (prepare it again)");
  }
  Result<Safetensors> files = Safetensors::open(folder);
  if (!files.ok()) {
    const bool none = files.status().code() == StatusCode::kNotFound;
    return none ? ok_status() : files.status();  // a folder without weights is fine
  }
  TF_ASSIGN_OR_RETURN(const std::string weights, files->sampled_digest());
  Sha256 hash;
  hash.update(config);
  hash.update(weights);
  if (hash.hex() == image.directory.model_digest) return ok_status();
  return invalid_argument("an image of another model: its weights are not those of " + folder +
                          " (prepare it again)");
}

// Tables that the image does not carry come from the folder that has them.
Status find_folder_tables(OpenImage& image, const WeightSourceOptions& options) {
  const bool all = std::all_of(image.tables.begin(), image.tables.end(),
                               [](const auto& table) { return table.has_value(); });
  if (all) return ok_status();
  const std::string& folder =
      options.engram_path.empty() ? options.model_path : options.engram_path;
  if (folder.empty()) {
    return options.require_engram
               ? data_loss("carries no Engram tables and no folder with them is given")
               : ok_status();
  }
  TF_ASSIGN_OR_RETURN(const Safetensors files, Safetensors::open(folder, /*partial=*/true));
  for (size_t i = 0; i < image.tables.size(); ++i) {
    if (image.tables[i].has_value()) continue;
    Result<EngramStorage> storage = find_engram(files, image.config, static_cast<int>(i));
    if (storage.ok()) {
      image.tables[i] = std::move(*storage);
    } else if (options.require_engram || storage.status().code() != StatusCode::kNotFound) {
      return storage.status();
    }
  }
  return ok_status();
}

Status make_fingerprint(OpenImage& image) {
  std::vector<std::string> digests;
  for (size_t i = 0; i < image.tables.size(); ++i) {
    const std::optional<EngramStorage>& storage = image.tables[i];
    std::string digest =
        i < image.directory.engram_digests.size() ? image.directory.engram_digests[i] : "";
    if (storage.has_value() && storage->segments[0].file != image.file) {
      TF_ASSIGN_OR_RETURN(std::string found, engram_digest(*storage));
      if (!digest.empty() && digest != found) {
        return invalid_argument(storage->segments[0].file->path() + ": Engram table " +
                                storage->segments[0].name +
                                " is not the one that the image was prepared with");
      }
      digest = std::move(found);
    }
    if (!digest.empty() && storage.has_value()) digests.push_back(std::move(digest));
  }
  image.fingerprint = model_fingerprint(image.directory.model_digest, image.token_map, digests);
  return ok_status();
}

class ImageSource final : public WeightSource {
 public:
  ImageSource(OpenImage image, int64_t cache_rows)
      : image_(std::move(image)), cache_rows_(cache_rows) {
    for (const ImageWeight& weight : image_.directory.weights) infos_.push_back(weight.info);
    for (size_t i = 0; i < infos_.size(); ++i) by_name_.emplace(infos_[i].name, i);
  }

  const ModelConfig& config() const override { return image_.config; }
  const Partition& part() const override { return image_.part; }
  const std::string& fingerprint() const override { return image_.fingerprint; }
  std::span<const int32_t> engram_token_map() const override { return image_.token_map; }
  std::span<const WeightInfo> weights() const override { return infos_; }

  const WeightInfo* find(std::string_view name) const override {
    const auto it = by_name_.find(name);
    return it == by_name_.end() ? nullptr : &infos_[it->second];
  }

  int64_t rank_bytes() const override {
    int64_t bytes = 0;
    for (const ImageWeight& weight : image_.directory.weights) {
      for (const ImagePart& part : weight.parts) {
        for (int64_t size : part_sizes(part)) bytes += size;
      }
    }
    return bytes;
  }

  Result<Weight> load(std::string_view name) const override {
    TF_ASSIGN_OR_RETURN(const size_t index, held(name));
    if (is_group_weight(name)) {
      return invalid_argument(std::string(name) + ": is loaded by output group");
    }
    TF_ASSIGN_OR_RETURN(std::vector<Weight> parts, parts_of(index));
    return std::move(parts[0]);
  }

  Result<std::vector<Weight>> load_groups(std::string_view name) const override {
    TF_ASSIGN_OR_RETURN(const size_t index, held(name));
    if (!is_group_weight(name)) {
      return invalid_argument(std::string(name) + ": has no output groups");
    }
    return parts_of(index);
  }

  void read_ahead(int threads) const override {
    ahead_.reset();
    if (threads == 0) return;
    std::vector<int64_t> sizes;
    for (const ImageWeight& weight : image_.directory.weights) {
      sizes.push_back(0);
      for (const ImagePart& part : weight.parts) sizes.back() += part.section.bytes;
    }
    ahead_ = std::make_unique<ReadAhead<std::vector<Weight>>>(
        std::move(sizes), std::min(threads, kReadAheadThreadsMax), [this] {
          return [this, reader = std::make_shared<SectionReader>(image_.file)](size_t index) {
            return read_parts(index, *reader);
          };
        });
  }

  Result<std::unique_ptr<EngramTable>> open_engram(int index) const override {
    if (index < 0 || static_cast<size_t>(index) >= image_.tables.size()) {
      return invalid_argument("Engram table " + std::to_string(index) + ": the model has " +
                              std::to_string(image_.tables.size()));
    }
    const std::optional<EngramStorage>& storage = image_.tables[static_cast<size_t>(index)];
    if (!storage.has_value()) {
      return Status(StatusCode::kNotFound,
                    image_.file->path() + ": carries no Engram table " + std::to_string(index));
    }
    return make_engram_table(*storage, cache_rows_);
  }

 private:
  static bool is_group_weight(std::string_view name) { return name.ends_with(".attn.wo_a"); }

  Result<size_t> held(std::string_view name) const {
    const auto it = by_name_.find(name);
    if (it == by_name_.end()) {
      return Status(StatusCode::kNotFound,
                    image_.file->path() + ": weight " + std::string(name) + " is not there");
    }
    const ImageWeight& weight = image_.directory.weights[it->second];
    if (weight.parts.empty()) {
      return invalid_argument("weight " + std::string(name) + ": rank " +
                              std::to_string(image_.part.rank) + " holds no part of it");
    }
    return it->second;
  }

  // Every part of the index-th weight, from the threads that read ahead or here and now.
  Result<std::vector<Weight>> parts_of(size_t index) const {
    if (ahead_ != nullptr) {
      if (auto read = ahead_->take(index)) return std::move(*read);
    }
    SectionReader reader(image_.file);
    return read_parts(index, reader);
  }

  Result<std::vector<Weight>> read_parts(size_t index, SectionReader& reader) const {
    std::vector<Weight> parts;
    for (const ImagePart& part : image_.directory.weights[index].parts) {
      TF_ASSIGN_OR_RETURN(Weight weight, read_part(part, infos_[index].name, reader));
      parts.push_back(std::move(weight));
    }
    return parts;
  }

  Result<Weight> read_part(const ImagePart& p, std::string_view name, SectionReader& reader) const {
    Weight w;
    w.kind = p.kind;
    w.out = p.out;
    w.in = p.in;
    w.padded_out = p.padded_out;
    w.padded_in = p.padded_in;
    w.scale_rows = p.scale_rows;
    w.half_bits = p.half_bits;
    w.codebook = p.codebook;
    const std::array<int64_t, 5> sizes = part_sizes(p);
    w.data.resize(static_cast<size_t>(sizes[0]));
    w.scales.resize(static_cast<size_t>(sizes[1]));
    w.suh.resize(static_cast<size_t>(sizes[2] / 2));
    w.svh.resize(static_cast<size_t>(sizes[3] / 2));
    w.bias.resize(static_cast<size_t>(sizes[4] / 2));
    const auto bytes = [](auto& v) { return std::as_writable_bytes(std::span(v)); };
    const std::array all = {bytes(w.data), bytes(w.scales), bytes(w.suh), bytes(w.svh),
                            bytes(w.bias)};
    std::vector<SectionArray> arrays;
    int64_t at = 0;
    for (const std::span<std::byte> array : all) {
      if (array.empty()) continue;
      at = (at + kImagePartAlignBytes - 1) / kImagePartAlignBytes * kImagePartAlignBytes;
      arrays.push_back({at, array});
      at += static_cast<int64_t>(array.size());
    }
    Sha256 hash;
    const Status status = reader.read(p.section.offset, arrays, hash);
    if (!status.ok()) return status.with_context("weight " + std::string(name));
    if (hash.hex() != p.section.sha256) {
      return data_loss(image_.file->path() + ": weight " + std::string(name) +
                       ": damaged (its SHA-256 differs)");
    }
    return w;
  }

  const OpenImage image_;
  const int64_t cache_rows_;
  std::vector<WeightInfo> infos_;
  std::unordered_map<std::string_view, size_t> by_name_;
  // Last: its threads read what is above.
  mutable std::unique_ptr<ReadAhead<std::vector<Weight>>> ahead_;
};

bool is_folder(const std::string& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

}  // namespace

Result<std::unique_ptr<WeightSource>> open_image_source(const WeightSourceOptions& options) {
  std::string path = options.prepared_path;
  if (is_folder(path)) path += "/" + image_file_name(options.rank, options.world_size);
  OpenImage image;
  TF_ASSIGN_OR_RETURN(image.file, ReadFile::open(path));
  Status status = read_directory(image);
  if (status.ok()) status = check_rank(image, options);
  if (status.ok()) status = check_model(image, options.model_path);
  if (status.ok()) status = find_folder_tables(image, options);
  if (status.ok()) status = make_fingerprint(image);
  if (!status.ok()) return status.with_context(path);
  return std::unique_ptr<WeightSource>(
      new ImageSource(std::move(image), options.engram_cache_rows));
}

}  // namespace tensorfold
