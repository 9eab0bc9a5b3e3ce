// Benchmark of a start: a prepared image of V4.1-Flash's shapes (ten layers, one of two ranks, EXL3
// of random codes) is written, read plainly (O_DIRECT, several threads), and loaded into a device's
// memory as the engine does it, checks included; then rows of 264 bytes are read from all over it,
// as Engram tables are.
//
// usage: start_bench FOLDER [--device cuda|cpu] [--experts N] [--threads N] [--json FILE]
//                    [--commit ID] [--keep]
//
// FOLDER is on the disk that is measured. 384 experts (the default): 25 GiB. Peer: the plain read
// of the same file in the same run, before and after.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/json.h"
#include "engine/model/model_weights.h"
#include "engine/weights/engram_storage.h"
#include "engine/weights/file.h"
#include "engine/weights/image_format.h"
#include "engine/weights/partition.h"
#include "engine/weights/tensor_table.h"
#include "engine/weights/weight_source.h"
#include "kernels/device.h"

namespace tensorfold::bench {
namespace {

constexpr int64_t kPatternBytes = int64_t{64} << 20;
constexpr int64_t kPlainPieceBytes = int64_t{8} << 20;
constexpr int64_t kEngramRowBytes = 264;

constexpr const char* kConfig = R"({"model_type": "deepseek_v41", "bos_token_id": 0,
 "eos_token_id": 1, "pad_token_id": 2, "image_token_id": 1022, "text_config": {
 "vocab_size": 129280, "hidden_size": 5120, "moe_intermediate_size": 2304,
 "num_hidden_layers": 10, "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512,
 "qk_rope_head_dim": 64, "q_lora_rank": 1280, "o_lora_rank": 1024, "o_groups": 8,
 "hidden_act": "silu", "swiglu_limit": 10.0, "rms_norm_eps": 1e-20,
 "max_position_embeddings": 1048576, "rope_theta": 10000, "rope_scaling": {"rope_type": "yarn",
 "factor": 16, "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 65536},
 "n_routed_experts": EXPERTS, "n_shared_experts": 1, "num_experts_per_tok": 6,
 "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "norm_topk_prob": true,
 "routed_scaling_factor": 1.5, "sliding_window": 128,
 "compress_ratios": [0, 0, 2, 2, 2, 1, 1, 1, 1, 1], "compress_rope_theta": 160000,
 "kv_source_layer_ids": [2, 5], "index_source_layer_ids": [2, 5, 7, 9],
 "index_n_heads": 64, "index_head_dim": 128, "index_topk": 512, "candidate_source_layer_id": 5,
 "candidate_topk_blocks": 2048, "candidate_block_size": 8, "hc_mult": 4,
 "hc_sinkhorn_iters": 20, "hc_eps": 1e-06, "engram_layer_ids": [],
 "num_nextn_predict_layers": 0}})";

struct Options {
  std::string folder, device = "cuda", json, commit = "unknown";
  int experts = 384;
  int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  bool keep = false;
  std::string path() const { return folder + "/" + image_file_name(0, 2); }
};

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "start_bench: %s\n", what.c_str());
  std::exit(1);
}
template <typename T>
T value_or_fail(Result<T> result) {
  if (!result.ok()) fail(result.status().message());
  return std::move(*result);
}

// Finite as bf16, fp16 and fp32; any bits do for a trellis.
std::vector<std::byte> pattern() {
  std::vector<std::byte> bytes(static_cast<size_t>(kPatternBytes));
  std::mt19937_64 random(1);
  for (size_t i = 0; i < bytes.size(); i += 8) {
    const uint64_t v = (random() & 0x83FF83FF83FF83FFull) | 0x3C003C003C003C00ull;
    std::memcpy(bytes.data() + i, &v, 8);
  }
  return bytes;
}

ImagePart part_of(const WeightSpec& spec, int64_t out, int64_t in) {
  ImagePart p;
  p.out = p.padded_out = out;
  p.in = p.padded_in = in;
  p.kind = WeightKind::kF32;
  const bool codes = kind_allowed(spec.weight_class, WeightKind::kExl3) && in % 128 == 0;
  if (codes) {
    const bool expert = spec.name.find(".experts.") != std::string::npos;
    const bool wide = spec.name == "head" || spec.name.find("wq_a") != std::string::npos ||
                      spec.name.find("wkv") != std::string::npos;
    p.kind = WeightKind::kExl3;
    p.half_bits = expert ? 6 : wide ? 12 : 10;
    p.codebook = exl3::Codebook::kMul1;
    p.padded_out = (out + 127) / 128 * 128;
  } else if (!spec.vector && kind_allowed(spec.weight_class, WeightKind::kBf16)) {
    p.kind = WeightKind::kBf16;
  }
  return p;
}

// Places and hashes of all sections; sections of equal sizes hold equal bytes.
ImageDirectory plan(const ModelConfig& config, const Partition& part, const std::string& text,
                    const std::vector<std::byte>& bytes, int64_t& end) {
  ImageDirectory d;
  d.config_text = text;
  d.model_digest = d.token_map.sha256 = std::string(64, '0');
  d.world_size = 2;
  std::map<std::array<int64_t, 5>, std::string> hashes;
  int64_t at = kImageSectionAlignBytes;
  for (const WeightSpec& spec : weight_table(config)) {
    if (spec.optional) continue;
    const TensorSlice slice = slice_of(spec.name, config, part, spec.out, spec.in);
    const bool cut_in = slice.axis == SliceAxis::kInput;
    int64_t count = slice.axis == SliceAxis::kAbsent ? 0 : 1;
    int64_t out = cut_in ? spec.out : slice.range.size();
    if (spec.group_rows != 0) {
      count = part.o_groups.size();
      out = spec.group_rows;
    }
    ImageWeight weight;
    weight.info.name = spec.name;
    weight.info.out = spec.out;
    weight.info.in = spec.in;
    for (int64_t i = 0; i < count; ++i) {
      ImagePart p = part_of(spec, out, cut_in ? slice.range.size() : spec.in);
      weight.info.kind = p.kind;
      weight.info.half_bits = p.half_bits;
      weight.info.codebook = p.codebook;
      const std::array<int64_t, 5> sizes = part_sizes(p);
      std::string& hash = hashes[sizes];
      if (hash.empty()) {
        Sha256 sha;
        for (const int64_t size : sizes)
          for (int64_t done = 0; done < size; done += kPatternBytes)
            sha.update(
                std::span(bytes).first(static_cast<size_t>(std::min(kPatternBytes, size - done))));
        hash = sha.hex();
      }
      p.section = {at, section_bytes(p), hash};
      at += (p.section.bytes + kImageSectionAlignBytes - 1) / kImageSectionAlignBytes *
            kImageSectionAlignBytes;
      weight.parts.push_back(p);
    }
    d.weights.push_back(std::move(weight));
  }
  end = at;
  return d;
}

void write_all(int fd, const std::byte* from, int64_t count, int64_t at) {
  while (count > 0) {
    const ssize_t n = ::pwrite(fd, from, static_cast<size_t>(count), at);
    if (n <= 0) fail("the image cannot be written: " + std::string(std::strerror(errno)));
    from += n;
    at += n;
    count -= n;
  }
}

// Every array begins with the pattern's begin.
void write_part(int fd, const ImagePart& p, const std::vector<std::byte>& bytes) {
  int64_t at = 0;
  for (const int64_t size : part_sizes(p)) {
    if (size == 0) continue;
    at = (at + kImagePartAlignBytes - 1) / kImagePartAlignBytes * kImagePartAlignBytes;
    for (int64_t done = 0; done < size; done += kPatternBytes)
      write_all(fd, bytes.data(), std::min(kPatternBytes, size - done),
                p.section.offset + at + done);
    at += size;
  }
}

void on_threads(int threads, const std::function<void(int)>& work) {
  std::vector<std::thread> all;
  for (int i = 0; i < threads; ++i) all.emplace_back(work, i);
  for (std::thread& t : all) t.join();
}

int64_t write_image(const Options& o, const ModelConfig& config, const std::string& text) {
  const std::vector<std::byte> bytes = pattern();
  const Partition part = value_or_fail(partition(config, 0, 2));
  int64_t end = 0;
  const ImageDirectory d = plan(config, part, text, bytes, end);
  const int fd = ::open(o.path().c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) fail(o.path() + ": " + std::strerror(errno));
  std::atomic<size_t> next{0};
  on_threads(o.threads, [&](int) {
    for (size_t i = next++; i < d.weights.size(); i = next++)
      for (const ImagePart& p : d.weights[i].parts) write_part(fd, p, bytes);
  });
  const std::string directory = encode_directory(d);
  ImageSuperblock block;
  block.directory_offset = end;
  block.directory_bytes = static_cast<int64_t>(directory.size());
  block.file_bytes = end + block.directory_bytes;
  block.directory_sha256 = sha256_hex(std::as_bytes(std::span(directory)));
  write_all(fd, reinterpret_cast<const std::byte*>(directory.data()), block.directory_bytes, end);
  const auto head = encode_superblock(block);
  write_all(fd, head.data(), static_cast<int64_t>(head.size()), 0);
  if (::fsync(fd) != 0) fail(o.path() + ": " + std::strerror(errno));
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  ::close(fd);
  return block.file_bytes;
}

// Bytes a second of reading the whole file past the page cache, pieces dealt to threads.
double plain_rate(const Options& o, int64_t file_bytes) {
  const int fd = ::open(o.path().c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  if (fd < 0) fail(o.path() + " cannot be read with O_DIRECT: " + std::strerror(errno));
  std::atomic<int64_t> next{0};
  const auto begin = std::chrono::steady_clock::now();
  on_threads(o.threads, [&](int) {
    void* buffer = std::aligned_alloc(4096, static_cast<size_t>(kPlainPieceBytes));
    for (int64_t at = next.fetch_add(kPlainPieceBytes); at < file_bytes;
         at = next.fetch_add(kPlainPieceBytes))
      if (::pread(fd, buffer, static_cast<size_t>(kPlainPieceBytes), at) < 0) fail("pread");
    std::free(buffer);
  });
  ::close(fd);
  return static_cast<double>(file_bytes) / seconds_since(begin);
}

double load_rate(const Options& o, Device& device, int64_t file_bytes) {
  const std::unique_ptr<Stream> stream = value_or_fail(device.make_stream(0));
  WeightSourceOptions options;
  options.prepared_path = o.path();
  options.world_size = 2;
  const auto begin = std::chrono::steady_clock::now();
  const std::unique_ptr<WeightSource> source = value_or_fail(WeightSource::open(options));
  const std::unique_ptr<ModelWeights> weights =
      value_or_fail(load_model_weights(*source, device, *stream));
  const double seconds = seconds_since(begin);
  std::printf("loaded in %.2f s: %d matrices as stored, %d widened\n", seconds,
              static_cast<int>(weights->exl3_kept), static_cast<int>(weights->exl3_widened));
  return static_cast<double>(file_bytes) / seconds;
}

struct RowTime {
  int rows;
  double median_us, p99_us;
};

// Batches of random rows that nothing has read before, of the first 16 GiB.
std::vector<RowTime> engram_times(const Options& o, int64_t file_bytes) {
  EngramStorage storage;
  storage.kind = WeightKind::kBf16;
  storage.width = static_cast<int>(kEngramRowBytes / 2);
  const int64_t bytes = std::min(file_bytes - kImageSectionAlignBytes, int64_t{16} << 30);
  storage.rows = {0, bytes / kEngramRowBytes};
  storage.segments = {{value_or_fail(ReadFile::open(o.path())), kImageSectionAlignBytes,
                       kEngramRowBytes, kEngramRowBytes, "rows"}};
  std::vector<RowTime> times;
  std::mt19937_64 random(3);
  for (const int rows : {12, 72, 768}) {  // one token, six, 64 of a layer
    const auto table = make_engram_table(storage, 0, true);
    std::vector<std::byte> raw(static_cast<size_t>(rows * kEngramRowBytes));
    std::vector<int64_t> wanted(static_cast<size_t>(rows));
    std::vector<double> us;
    for (int batch = 0; batch < 400; ++batch) {
      for (int64_t& row : wanted)
        row = static_cast<int64_t>(random() % static_cast<uint64_t>(storage.rows.size()));
      const auto begin = std::chrono::steady_clock::now();
      const Status status = table->read(wanted, raw);
      us.push_back(seconds_since(begin) * 1e6);
      if (!status.ok()) fail(status.message());
    }
    std::sort(us.begin(), us.end());
    times.push_back({rows, us[us.size() / 2], us[us.size() * 99 / 100]});
    std::printf("%d rows of 264 bytes: %.0f us median, %.0f us p99\n", rows, times.back().median_us,
                times.back().p99_us);
  }
  return times;
}

void write_json(const Options& o, const char* device, int64_t bytes, double before, double loaded,
                double after, const std::vector<RowTime>& times) {
  std::FILE* f = std::fopen(o.json.c_str(), "w");
  if (f == nullptr) fail(o.json + ": cannot be written");
  std::fprintf(f,
               "{\"device\": \"%s\", \"commit\": \"%s\", \"threads\": %d, \"image_bytes\": %lld, "
               "\"plain_gb_s\": [%.3f, %.3f], \"load_gb_s\": %.3f, \"rows\": [",
               device, o.commit.c_str(), o.threads, static_cast<long long>(bytes), before / 1e9,
               after / 1e9, loaded / 1e9);
  for (size_t i = 0; i < times.size(); ++i)
    std::fprintf(f, "%s{\"rows\": %d, \"median_us\": %.1f, \"p99_us\": %.1f}", i > 0 ? ", " : "",
                 times[i].rows, times[i].median_us, times[i].p99_us);
  std::fprintf(f, "]}\n");
  std::fclose(f);
}

int run(const Options& o) {
  Result<std::shared_ptr<Device>> device = open_device(o.device);
  if (!device.ok()) {
    std::printf("skipped: %s\n", device.status().message().c_str());
    return 77;
  }
  std::string text = kConfig;
  text.replace(text.find("EXPERTS"), 7, std::to_string(o.experts));
  const ModelConfig config =
      value_or_fail(parse_model_config(value_or_fail(parse_json(text, JsonDialect::kPython))));
  const auto begin = std::chrono::steady_clock::now();
  const int64_t bytes = write_image(o, config, text);
  std::printf("%s: %.2f GiB written in %.1f s\n", o.path().c_str(),
              static_cast<double>(bytes) / (1 << 30), seconds_since(begin));
  std::fflush(stdout);
  const double before = plain_rate(o, bytes);
  std::printf("plain read %.2f GB/s\n", before / 1e9);
  std::fflush(stdout);
  const double loaded = load_rate(o, **device, bytes);
  const double after = plain_rate(o, bytes);
  std::printf("plain read %.2f and %.2f GB/s, loaded at %.2f GB/s: %.0f%% of the better one\n",
              before / 1e9, after / 1e9, loaded / 1e9, 100 * loaded / std::max(before, after));
  std::fflush(stdout);
  const std::vector<RowTime> times = engram_times(o, bytes);
  if (!o.json.empty()) write_json(o, (*device)->name(), bytes, before, loaded, after, times);
  if (!o.keep) ::unlink(o.path().c_str());
  return 0;
}

}  // namespace
}  // namespace tensorfold::bench

int main(int argc, char** argv) {
  tensorfold::bench::Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const auto value = [&] { return i + 1 < argc ? std::string(argv[++i]) : std::string(); };
    if (name == "--device")
      o.device = value();
    else if (name == "--experts")
      o.experts = std::atoi(value().c_str());
    else if (name == "--threads")
      o.threads = std::max(1, std::atoi(value().c_str()));
    else if (name == "--json")
      o.json = value();
    else if (name == "--commit")
      o.commit = value();
    else if (name == "--keep")
      o.keep = true;
    else
      o.folder = name;
  }
  if (o.folder.empty() || o.experts < 6) {
    std::fprintf(stderr, "usage: start_bench FOLDER [--device cuda|cpu] [--experts N >= 6]\n");
    return 64;
  }
  return tensorfold::bench::run(o);
}
