// Writes prepared images (see image.h): weight after weight, one in memory at a time.
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "engine/cluster/collective.h"
#include "engine/weights/engram_constants.h"
#include "engine/weights/file.h"
#include "engine/weights/image.h"
#include "engine/weights/image_format.h"
#include "engine/weights/source_makers.h"
#include "engine/weights/token_map.h"

namespace tensorfold {
namespace {

constexpr int64_t kTableRowsAtOnce = 65536;

template <typename T>
std::span<const std::byte> raw(const std::vector<T>& values) {
  return std::as_bytes(std::span<const T>(values));
}

// What all ranks' images of one model share.
struct Shared {
  const Checkpoint* model = nullptr;
  const PrepareOptions* options = nullptr;
  std::string model_digest;
  std::vector<std::string> engram_digests;
  std::vector<int32_t> token_map;
};

class ImageWriter {
 public:
  ImageWriter(const Shared& shared, const Partition& part, AtomicFile& file)
      : shared_(shared), model_(*shared.model), part_(part), file_(file) {}

  Status write() {
    directory_.model_digest = shared_.model_digest;
    directory_.config_text = model_.config_text();
    directory_.rank = part_.rank;
    directory_.world_size = part_.world_size;
    directory_.engram_digests = shared_.engram_digests;
    TF_RETURN_IF_ERROR(file_.append(std::vector<std::byte>(kImageSectionAlignBytes)));
    for (const Checkpoint::Entry& entry : model_.entries()) TF_RETURN_IF_ERROR(weight(entry));
    TF_RETURN_IF_ERROR(token_map());
    if (shared_.options->with_engram) TF_RETURN_IF_ERROR(tables());
    return finish();
  }

 private:
  Status weight(const Checkpoint::Entry& entry) {
    ImageWeight row;
    row.info = entry.info;
    const WeightSpec& spec = entry.spec;
    if (spec.group_rows != 0) {
      TF_ASSIGN_OR_RETURN(const std::vector<Weight> groups, load_group_slices(entry, part_));
      for (const Weight& group : groups) TF_RETURN_IF_ERROR(part(group, row));
    } else if (slice_of(spec.name, model_.config(), part_, spec.out, spec.in).axis !=
               SliceAxis::kAbsent) {
      TF_ASSIGN_OR_RETURN(const Weight slice, load_slice(entry, model_.config(), part_));
      TF_RETURN_IF_ERROR(part(slice, row));
    }
    directory_.weights.push_back(std::move(row));
    return ok_status();
  }

  Status part(const Weight& w, ImageWeight& row) {
    ImagePart p;
    p.kind = w.kind;
    p.out = w.out;
    p.in = w.in;
    p.padded_out = w.padded_out;
    p.padded_in = w.padded_in;
    p.scale_rows = w.scale_rows;
    p.half_bits = w.half_bits;
    p.codebook = w.codebook;
    p.has_bias = !w.bias.empty();
    TF_RETURN_IF_ERROR(file_.pad_to(kImageSectionAlignBytes));
    p.section.offset = file_.position();
    p.section.bytes = section_bytes(p);
    Sha256 hash;
    const std::array<int64_t, 5> sizes = part_sizes(p);
    const std::array arrays = {std::span<const std::byte>(w.data), raw(w.scales), raw(w.suh),
                               raw(w.svh), raw(w.bias)};
    for (size_t i = 0; i < arrays.size(); ++i) {
      TF_CHECK_EQ(static_cast<int64_t>(arrays[i].size()), sizes[i]);
      if (arrays[i].empty()) continue;
      TF_RETURN_IF_ERROR(file_.pad_to(kImagePartAlignBytes));
      TF_RETURN_IF_ERROR(file_.append(arrays[i]));
      hash.update(arrays[i]);
    }
    TF_CHECK_EQ(file_.position() - p.section.offset, p.section.bytes);
    p.section.sha256 = hash.hex();
    row.parts.push_back(std::move(p));
    return ok_status();
  }

  Status token_map() {
    TF_RETURN_IF_ERROR(file_.pad_to(kImageSectionAlignBytes));
    const std::span<const std::byte> bytes = raw(shared_.token_map);
    directory_.token_map = {file_.position(), static_cast<int64_t>(bytes.size()),
                            sha256_hex(bytes)};
    return file_.append(bytes);
  }

  // Rows of this rank's hash columns: columns lie one after the other in the table.
  Status tables() {
    TF_ASSIGN_OR_RETURN(const EngramConstants constants, engram_constants(model_.config().engram));
    for (size_t i = 0; i < model_.engram().size(); ++i) {
      const std::vector<int64_t>& offsets = constants.layers[i].offsets;
      const auto first = static_cast<size_t>(part_.engram_columns.begin);
      const auto last = static_cast<size_t>(part_.engram_columns.end);
      const Range rows = {offsets[first],
                          last < offsets.size() ? offsets[last] : constants.layers[i].rows};
      TF_RETURN_IF_ERROR(table(static_cast<int>(i), *model_.engram()[i], rows));
    }
    return ok_status();
  }

  Status table(int index, const EngramStorage& storage, Range rows) {
    TF_RETURN_IF_ERROR(file_.pad_to(kImageSectionAlignBytes));
    ImageTable row = {index, storage.kind, rows, storage.width, {}};
    row.section = {file_.position(), rows.size() * storage.row_bytes(), {}};
    Sha256 hash;
    std::vector<std::vector<std::byte>> pieces(storage.segments.size());
    std::vector<std::byte> block;
    for (int64_t begin = rows.begin; begin < rows.end; begin += kTableRowsAtOnce) {
      const int64_t count = std::min(kTableRowsAtOnce, rows.end - begin);
      for (size_t s = 0; s < pieces.size(); ++s) {
        const EngramStorage::Segment& segment = storage.segments[s];
        pieces[s].resize(static_cast<size_t>(count * segment.pitch));
        TF_RETURN_IF_ERROR(segment.file->read(
            segment.offset + (begin - storage.rows.begin) * segment.pitch, pieces[s]));
      }
      block.clear();
      for (int64_t r = 0; r < count; ++r) {
        for (size_t s = 0; s < pieces.size(); ++s) {
          const EngramStorage::Segment& segment = storage.segments[s];
          const std::byte* piece = pieces[s].data() + r * segment.pitch;
          block.insert(block.end(), piece, piece + segment.bytes);
        }
      }
      hash.update(block);
      TF_RETURN_IF_ERROR(file_.append(block));
    }
    row.section.sha256 = hash.hex();
    directory_.tables.push_back(std::move(row));
    return ok_status();
  }

  Status finish() {
    TF_RETURN_IF_ERROR(file_.pad_to(kImageSectionAlignBytes));
    const std::string bytes = encode_directory(directory_);
    if (static_cast<int64_t>(bytes.size()) > kImageDirectoryBytesMax) {
      return unsupported("the image's directory would be larger than " +
                         std::to_string(kImageDirectoryBytesMax) + " bytes");
    }
    ImageSuperblock block;
    block.directory_offset = file_.position();
    block.directory_bytes = static_cast<int64_t>(bytes.size());
    block.directory_sha256 = sha256_hex(bytes_of(bytes));
    TF_RETURN_IF_ERROR(file_.append(bytes));
    TF_RETURN_IF_ERROR(file_.pad_to(kImageSectionAlignBytes));
    block.file_bytes = file_.position();
    return file_.write_at(0, encode_superblock(block));
  }

  const Shared& shared_;
  const Checkpoint& model_;
  const Partition part_;
  AtomicFile& file_;
  ImageDirectory directory_;
};

Status write_image(const Shared& shared, int rank,
                   const std::function<void(std::string_view)>& progress) {
  const PrepareOptions& options = *shared.options;
  TF_ASSIGN_OR_RETURN(const Partition part,
                      partition(shared.model->config(), rank, options.world_size));
  const std::string path = options.out_path + "/" + image_file_name(rank, options.world_size);
  TF_ASSIGN_OR_RETURN(const std::unique_ptr<AtomicFile> file, AtomicFile::create(path));
  TF_RETURN_IF_ERROR(ImageWriter(shared, part, *file).write());
  const int64_t bytes = file->position();
  TF_RETURN_IF_ERROR(file->commit());
  if (progress) progress(path + ": " + std::to_string(bytes) + " bytes");
  return ok_status();
}

}  // namespace

std::string image_file_name(int rank, int world_size) {
  return "rank-" + std::to_string(rank) + "-of-" + std::to_string(world_size) + ".tfimage";
}

Status prepare_images(const PrepareOptions& options,
                      const std::function<void(std::string_view)>& progress) {
  TF_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> model,
                      Checkpoint::open(options.model_path, options.engram_path));
  TF_RETURN_IF_ERROR(model->complete(options.with_engram));
  // An illegal world size is refused before anything is written.
  TF_RETURN_IF_ERROR(
      partition(model->config(), std::max(options.rank, 0), options.world_size).status());
  Shared shared;
  shared.model = model.get();
  shared.options = &options;
  TF_ASSIGN_OR_RETURN(shared.model_digest, model->model_digest());
  TF_ASSIGN_OR_RETURN(shared.token_map, load_token_map(model->config(), options.model_path));
  for (const std::optional<EngramStorage>& storage : model->engram()) {
    std::string digest;
    if (storage.has_value()) {
      TF_ASSIGN_OR_RETURN(digest, engram_digest(*storage));
    }
    shared.engram_digests.push_back(std::move(digest));
  }
  if (::mkdir(options.out_path.c_str(), 0755) != 0 && errno != EEXIST) {
    return io_error(options.out_path, errno);
  }
  for (int rank = 0; rank < options.world_size; ++rank) {
    if (options.rank >= 0 && rank != options.rank) continue;
    TF_RETURN_IF_ERROR(write_image(shared, rank, progress));
  }
  return ok_status();
}

}  // namespace tensorfold
