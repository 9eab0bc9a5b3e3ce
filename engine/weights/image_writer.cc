// Writes prepared images (see image.h): weight after weight, one in memory at a time. What is
// written so far is kept when a run ends before its image does (image_resume.h).
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "engine/cluster/collective.h"
#include "engine/weights/engram_constants.h"
#include "engine/weights/file.h"
#include "engine/weights/image.h"
#include "engine/weights/image_format.h"
#include "engine/weights/image_resume.h"
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
  ImageWriter(const Shared& shared, const Partition& part, ImageDirectory begun, AtomicFile& file,
              const ImageNeed& need, const PrepareEvents& events)
      : shared_(shared),
        model_(*shared.model),
        part_(part),
        file_(file),
        need_(need),
        events_(events),
        directory_(std::move(begun)),
        saved_at_(file.position()) {}

  // `begun` has the rows of what is in the file already.
  Status write() {
    if (file_.position() == 0) {
      TF_RETURN_IF_ERROR(file_.append(std::vector<std::byte>(kImageSectionAlignBytes)));
    }
    const std::vector<Checkpoint::Entry>& entries = model_.entries();
    while (directory_.weights.size() < entries.size()) {
      TF_RETURN_IF_ERROR(weight(entries[directory_.weights.size()]));
      TF_RETURN_IF_ERROR(look());
    }
    if (directory_.token_map.offset == 0) TF_RETURN_IF_ERROR(token_map());
    if (shared_.options->with_engram) TF_RETURN_IF_ERROR(tables());
    return finish();
  }

 private:
  // Progress, and every so often the rows so far.
  Status look() {
    if (events_.moved) events_.moved(need_.rank, std::min(file_.position(), need_.bytes));
    const int64_t gap = std::max(kImageSaveLeastBytes, need_.bytes / kImageSavesMax);
    if (file_.position() - saved_at_ < gap) return ok_status();
    saved_at_ = file_.position();
    return save_unfinished(need_.path, file_, directory_);
  }

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
    for (size_t i = directory_.tables.size(); i < model_.engram().size(); ++i) {
      const std::vector<int64_t>& offsets = constants.layers[i].offsets;
      const auto first = static_cast<size_t>(part_.engram_columns.begin);
      const auto last = static_cast<size_t>(part_.engram_columns.end);
      const Range rows = {offsets[first],
                          last < offsets.size() ? offsets[last] : constants.layers[i].rows};
      TF_RETURN_IF_ERROR(table(static_cast<int>(i), *model_.engram()[i], rows));
      TF_RETURN_IF_ERROR(look());
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
      if (events_.moved) events_.moved(need_.rank, std::min(file_.position(), need_.bytes));
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
  const ImageNeed& need_;
  const PrepareEvents& events_;
  ImageDirectory directory_;
  int64_t saved_at_;
};

// The directory of a rank's image before anything is in it.
ImageDirectory empty_directory(const Shared& shared, int rank) {
  ImageDirectory out;
  out.model_digest = shared.model_digest;
  out.config_text = shared.model->config_text();
  out.rank = rank;
  out.world_size = shared.options->world_size;
  out.engram_digests = shared.engram_digests;
  return out;
}

Status write_image(const Shared& shared, const ImageNeed& need, const PrepareEvents& events) {
  const auto say = [&](const std::string& line) {
    if (events.line) events.line(line);
  };
  if (need.there) {
    say(need.path + ": is there already, of this model");
    return ok_status();
  }
  TF_ASSIGN_OR_RETURN(const Partition part,
                      partition(shared.model->config(), need.rank, shared.options->world_size));
  ImageDirectory begun = empty_directory(shared, need.rank);
  const int64_t position = find_unfinished(need.path, begun);
  if (position > 0) say(need.path + ": goes on at byte " + std::to_string(position));
  TF_ASSIGN_OR_RETURN(const std::unique_ptr<AtomicFile> file,
                      AtomicFile::go_on(need.path, image_part_path(need.path), position));
  TF_RETURN_IF_ERROR(ImageWriter(shared, part, std::move(begun), *file, need, events).write());
  const int64_t bytes = file->position();
  forget_unfinished(need.path);
  TF_RETURN_IF_ERROR(file->commit());
  say(need.path + ": " + std::to_string(bytes) + " bytes");
  return ok_status();
}

// Bytes of the sections, as they are in the file.
Result<int64_t> expected_bytes(const Shared& shared, int rank) {
  const Checkpoint& model = *shared.model;
  TF_ASSIGN_OR_RETURN(const Partition part,
                      partition(model.config(), rank, shared.options->world_size));
  const auto padded = [](int64_t bytes) {
    return (bytes + kImageSectionAlignBytes - 1) / kImageSectionAlignBytes *
           kImageSectionAlignBytes;
  };
  int64_t bytes = kImageSectionAlignBytes + padded(int64_t{4} * model.config().vocab_size);
  for (const Checkpoint::Entry& entry : model.entries()) {
    bytes += padded(slice_bytes(entry, model.config(), part));
  }
  if (!shared.options->with_engram) return bytes;
  for (const std::optional<EngramStorage>& table : model.engram()) {
    // This rank's hash columns are its share of the rows, to within a few rows.
    bytes += padded(table->rows.size() / shared.options->world_size * table->row_bytes());
  }
  return bytes;
}

Result<std::vector<ImageNeed>> needs_of(const Shared& shared) {
  std::vector<ImageNeed> out;
  const PrepareOptions& options = *shared.options;
  for (int rank = 0; rank < options.world_size; ++rank) {
    if (options.rank >= 0 && rank != options.rank) continue;
    ImageNeed need;
    need.rank = rank;
    need.path = options.out_path + "/" + image_file_name(rank, options.world_size);
    const ImageDirectory wanted = empty_directory(shared, rank);
    need.there = image_is_of(need.path, wanted, options.with_engram);
    TF_ASSIGN_OR_RETURN(need.bytes, expected_bytes(shared, rank));
    ImageDirectory begun = wanted;
    if (!need.there) need.part_bytes = std::min(need.bytes, find_unfinished(need.path, begun));
    out.push_back(std::move(need));
  }
  return out;
}

// `model` owns what `shared` looks at.
Status open_shared(const PrepareOptions& options, std::unique_ptr<Checkpoint>& model,
                   Shared& shared) {
  TF_ASSIGN_OR_RETURN(model, Checkpoint::open(options.model_path, options.engram_path));
  TF_RETURN_IF_ERROR(model->complete(options.with_engram));
  // An illegal world size is refused before anything is written.
  TF_RETURN_IF_ERROR(
      partition(model->config(), std::max(options.rank, 0), options.world_size).status());
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
  return ok_status();
}

}  // namespace

std::string image_file_name(int rank, int world_size) {
  return "rank-" + std::to_string(rank) + "-of-" + std::to_string(world_size) + ".tfimage";
}

Result<std::vector<ImageNeed>> images_needed(const PrepareOptions& options) {
  std::unique_ptr<Checkpoint> model;
  Shared shared;
  TF_RETURN_IF_ERROR(open_shared(options, model, shared));
  return needs_of(shared);
}

Status prepare_images(const PrepareOptions& options, const PrepareEvents& events) {
  std::unique_ptr<Checkpoint> model;
  Shared shared;
  TF_RETURN_IF_ERROR(open_shared(options, model, shared));
  TF_ASSIGN_OR_RETURN(const std::vector<ImageNeed> needs, needs_of(shared));
  if (::mkdir(options.out_path.c_str(), 0755) != 0 && errno != EEXIST) {
    return io_error(options.out_path, errno);
  }
  for (const ImageNeed& need : needs) TF_RETURN_IF_ERROR(write_image(shared, need, events));
  return ok_status();
}

}  // namespace tensorfold
