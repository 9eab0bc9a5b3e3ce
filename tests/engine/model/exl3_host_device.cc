// A backend library without a GPU: the CPU's operations over memory that counts as a device's, with
// EXL3 weights held as they are. project, moe_experts and head_logits widen such a weight when they
// first see it and run the CPU's product, prompt rows and generated rows apart, as the kernels do.
// So loading and the forward pass over kExl3 weights are tested where there is no GPU.
//
// TENSORFOLD_TEST_CLASSES=differ: generated rows see weights that are a little larger, so that a
// row in the wrong class shows. TENSORFOLD_TEST_FAULT (with it): a short chunk of a prompt goes
// where generated rows go, the fault that kernels/cuda/exl3_rows.cu has too.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "engine/weights/exl3_codec.h"
#include "kernels/cuda/exl3_layout.h"
#include "kernels/device.h"
#include "tests/engine/cluster/fake_lane.h"

namespace tensorfold::test {
namespace {

enum class Class : unsigned char { kPrompt, kGenerated };

bool classes_differ() { return std::getenv("TENSORFOLD_TEST_CLASSES") != nullptr; }
int prompt_rows_of(int prompt_rows) {
  const bool faulty = classes_differ() && std::getenv("TENSORFOLD_TEST_FAULT") != nullptr;
  return faulty && prompt_rows < 32 ? 0 : prompt_rows;
}

struct Widened {
  std::vector<std::byte> memory[2];
  WeightView view[2];  // by class

  explicit Widened(const WeightView& w) {
    const Exl3Parts& p = w.exl3;
    const auto words =
        static_cast<size_t>(cuda::exl3_trellis_words(p.padded_in, p.padded_out, p.half_bits / 2));
    std::vector<uint32_t> lanes(words), tiles(words);
    std::memcpy(lanes.data(), p.trellis, words * 4);
    cuda::exl3_tiles_from_lanes(lanes, p.padded_in, p.padded_out, p.half_bits / 2, tiles);
    exl3::LayerView layer;
    layer.trellis = {reinterpret_cast<const uint16_t*>(tiles.data()), words * 2};
    layer.suh = {p.suh, static_cast<size_t>(p.padded_in)};
    layer.svh = {p.svh, static_cast<size_t>(p.padded_out)};
    layer.k_in = p.padded_in;
    layer.n_out = p.padded_out;
    layer.half_bits = p.half_bits;
    layer.codebook = static_cast<exl3::Codebook>(p.codebook);
    std::vector<float> whole(static_cast<size_t>(p.padded_in) * static_cast<size_t>(p.padded_out));
    exl3::effective_weight(layer, 0, p.padded_out, 0, p.padded_in, whole.data(), p.padded_in);
    std::vector<float> values(static_cast<size_t>(w.in) * static_cast<size_t>(w.out));
    for (int n = 0; n < w.out; ++n)
      std::memcpy(values.data() + int64_t{n} * w.in, whole.data() + int64_t{n} * p.padded_in,
                  static_cast<size_t>(w.in) * 4);
    for (const Class c : {Class::kPrompt, Class::kGenerated}) {
      if (c == Class::kGenerated && classes_differ())
        for (float& v : values) v *= 1.0078125f;
      WeightView& to = view[static_cast<int>(c)];
      std::vector<std::byte>& bytes = memory[static_cast<int>(c)];
      to = w;
      to.layout = WeightLayout::kPanelBf16;
      bytes.resize(static_cast<size_t>(to.bytes()));
      pack_panels(values.data(), w.out, w.in, to.layout, bytes.data());
      to.data = bytes.data();
    }
  }
};

const WeightView& widened(const WeightView& w, Class c) {
  static std::map<const void*, std::unique_ptr<Widened>> known;
  if (w.layout != WeightLayout::kExl3) return w;
  std::unique_ptr<Widened>& entry = known[w.exl3.trellis];
  if (entry == nullptr) entry = std::make_unique<Widened>(w);
  return entry->view[static_cast<int>(c)];
}

// Rows [first, first + rows) of an operation in one class.
void project_part(ProjectParams p, int first, int rows, Class c, Stream& stream) {
  if (rows == 0) return;
  WeightView views[kProjectOutputsMax];
  p.rows = rows;
  p.x += first * p.x_stride;
  for (int i = 0; i < p.outputs; ++i) {
    ProjectOutput& o = p.output[i];
    views[i] = widened(*o.weight, c);
    o.weight = &views[i];
    o.y = static_cast<std::byte*>(o.y) + first * o.y_stride * (o.type == ValueType::kF32 ? 4 : 2);
  }
  cpu::project(p, stream);
}

void project(const ProjectParams& p, Stream& stream) {
  const int prompt = prompt_rows_of(p.prompt_rows);
  project_part(p, 0, prompt, Class::kPrompt, stream);
  project_part(p, prompt, p.rows - prompt, Class::kGenerated, stream);
}

void head_logits(const HeadLogitsParams& p, Stream& stream) {
  HeadLogitsParams q = p;
  q.head = &widened(*p.head, Class::kGenerated);
  cpu::head_logits(q, stream);
}

// The device's table of an operation's experts, not the host's, says where the trellises are.
void experts_part(MoeExpertsParams p, int first, int rows, Class c, Stream& stream) {
  if (rows == 0) return;
  std::vector<ExpertWeights> all(static_cast<size_t>(p.experts) + 1);
  for (int e = 0; e <= p.experts; ++e) {
    ExpertWeights& w = all[static_cast<size_t>(e)];
    w = e < p.experts ? p.expert[e] : *p.shared;
    const Exl3Expert& parts = p.exl3_on_device[e];
    if (parts.w1.trellis == nullptr) continue;
    w.w1.exl3 = parts.w1;
    w.w3.exl3 = parts.w3;
    w.w2.exl3 = parts.w2;
    w = {widened(w.w1, c), widened(w.w3, c), widened(w.w2, c)};
  }
  p.rows = rows;
  p.x += int64_t{first} * p.hidden;
  p.ids += int64_t{first} * p.topk;
  p.weights += int64_t{first} * p.topk;
  p.y += int64_t{first} * p.hidden;
  p.expert = all.data();
  p.shared = &all.back();
  cpu::moe_experts(p, stream);
}

void moe_experts(const MoeExpertsParams& p, Stream& stream) {
  if (p.exl3_on_device == nullptr) return cpu::moe_experts(p, stream);
  const int prompt = prompt_rows_of(p.prompt_rows);
  experts_part(p, 0, prompt, Class::kPrompt, stream);
  experts_part(p, prompt, p.rows - prompt, Class::kGenerated, stream);
}

class HostExl3Device final : public Device {
 public:
  HostExl3Device() : backend_(cpu_backend()) {
    backend_.project = project;
    backend_.head_logits = head_logits;
    backend_.moe_experts = moe_experts;
  }
  const char* name() const override { return "cuda:0 (host memory, EXL3 as stored)"; }
  const Backend& backend() const override { return backend_; }
  bool host_memory() const override { return false; }
  WeightLayout dense_layout(bool wide) const override { return cpu_device().dense_layout(wide); }
  // As the CUDA backend: mul1, 2 to 6 whole bits. One shape is refused, so that a model has both.
  bool reads_exl3(const Exl3Parts& w, Exl3Use use) const override {
    if (use == Exl3Use::kDense && w.padded_in == 128 && w.padded_out == 512) return false;
    return w.codebook == 2 && w.half_bits % 2 == 0 && w.half_bits >= 4 && w.half_bits <= 12;
  }
  Exl3Order pack_exl3(const Exl3Parts& stored, std::byte* to) const override {
    cuda::exl3_pack_lanes(stored, to);
    return Exl3Order::kLanes;
  }
  Status check_shape(const WorkspaceShape& s) const override { return cpu_device().check_shape(s); }
  int64_t workspace_bytes(const WorkspaceShape& s, const Stream& stream) const override {
    return cpu_device().workspace_bytes(s, stream);
  }
  Result<std::unique_ptr<Stream>> make_stream(int threads) override {
    return cpu_device().make_stream(threads);
  }
  // For the stand-in of NCCL.
  Result<std::unique_ptr<ExchangeLane>> make_exchange_lane() override {
    return std::unique_ptr<ExchangeLane>(std::make_unique<fake_nccl::FakeLane>());
  }
  void* allocate(int64_t bytes) override { return cpu_device().allocate(bytes); }
  void release(void* memory) override { cpu_device().release(memory); }
  int64_t free_bytes() const override { return cpu_device().free_bytes(); }
  void upload(void* to, const void* host, int64_t bytes, Stream& stream) override {
    cpu_device().upload(to, host, bytes, stream);
  }
  Status download(void* host, const void* from, int64_t bytes, Stream& stream) override {
    return cpu_device().download(host, from, bytes, stream);
  }
  void keep_rows(void* data, int64_t row_bytes, const int32_t* source, int rows,
                 Stream& stream) override {
    cpu_device().keep_rows(data, row_bytes, source, rows, stream);
  }
  // Its operations run at once; those that read what an exchange brings wait for it.
  void* native_queue(Stream&) override { return &queue_; }
  void sum_parts(float* y, const void* parts, ValueType type, int ranks, int64_t count,
                 Stream& stream) override {
    wait_for_exchanges();
    cpu_device().sum_parts(y, parts, type, ranks, count, stream);
  }
  void narrow(uint16_t* y, const float* x, int64_t count, Stream& stream) override {
    wait_for_exchanges();  // the one before may still read y
    cpu_device().narrow(y, x, count, stream);
  }
  void interleave(void* to, const void* parts, int ranks, int rows, int64_t bytes,
                  Stream& stream) override {
    wait_for_exchanges();
    cpu_device().interleave(to, parts, ranks, rows, bytes, stream);
  }
  void add(float* y, const float* x, int64_t count, Stream& stream) override {
    cpu_device().add(y, x, count, stream);
  }
  Status synchronise(Stream& stream) override { return cpu_device().synchronise(stream); }

 private:
  void wait_for_exchanges() const {
    while (queue_.waiting.load(std::memory_order_acquire) > 0) std::this_thread::yield();
  }

  Backend backend_;
  fake_nccl::Queue queue_;
};

}  // namespace
}  // namespace tensorfold::test

extern "C" __attribute__((visibility("default"))) tensorfold::Device* tensorfold_open_device(
    int abi_version, int index, char* error) {
  if (abi_version == tensorfold::kDeviceAbiVersion && index == 0)
    return new tensorfold::test::HostExl3Device();
  std::snprintf(error, tensorfold::kDeviceErrorBytes, "no such device");
  return nullptr;
}
