// A backend library without a GPU that records steps: the CPU's operations over memory that counts
// as a device's. While it records, an operation is kept with a copy of its arguments, as a graph of
// a GPU keeps them, and run when the graph is. So whatever changes from step to step and is not
// read from device memory shows as a wrong result.
//
// Work of exchanges between ranks comes by its native queue (launch_queue.h).
//
// TENSORFOLD_TEST_GRAPHS: "refuse": the second part of a step can't be recorded.
// TENSORFOLD_TEST_SAMPLES: "on": tokens are chosen here, by the functions that a GPU runs.
// TENSORFOLD_TEST_MEMORY: "none": there is no more.
// TENSORFOLD_TEST_FAULT: "ids" or "positions" are kept with the arguments instead of being read.
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "tests/engine/model/launch_queue.h"

namespace tensorfold::test {
namespace {

using Launches = std::vector<std::function<void(Stream&)>>;

// Of the thread: ranks are threads, each with a device of its own.
thread_local Launches* recording = nullptr;
thread_local bool broken = false;  // something was asked for that can't be recorded

bool setting(const char* name, const char* value) {
  const char* at = std::getenv(name);
  return at != nullptr && std::string(at) == value;
}

void launch(std::function<void(Stream&)> work, Stream& stream) {
  if (recording != nullptr)
    recording->push_back(std::move(work));
  else
    work(stream);
}

// The operation at `kOp` of the table, recorded or run.
template <auto kOp, typename Params>
void queued(const Params& p, Stream& stream) {
  launch([p](Stream& s) { (cpu_backend().*kOp)(p, s); }, stream);
}

void embed_rows(const EmbedRowsParams& p, Stream& stream) {
  if (recording == nullptr || !setting("TENSORFOLD_TEST_FAULT", "ids"))
    return queued<&Backend::embed_rows>(p, stream);
  const std::vector<int32_t> ids(p.ids, p.ids + p.rows);
  launch(
      [p, ids](Stream& s) {
        EmbedRowsParams q = p;
        q.ids = ids.data();
        cpu::embed_rows(q, s);
      },
      stream);
}

void rope_table(const RopeTableParams& p, Stream& stream) {
  if (recording == nullptr || !setting("TENSORFOLD_TEST_FAULT", "positions"))
    return queued<&Backend::rope_table>(p, stream);
  const std::vector<int64_t> positions(p.positions, p.positions + p.rows);
  launch(
      [p, positions](Stream& s) {
        RopeTableParams q = p;
        q.positions = positions.data();
        cpu::rope_table(q, s);
      },
      stream);
}

// Rows without changes or masks.
void choose(const SampleRowsParams& p) {
  const std::vector<uint32_t> changed(static_cast<size_t>(p.vocab) / 32 + 1);
  for (int r = 0; r < p.rows; ++r) {
    SampleScan scan;
    scan.row = p.row[r];
    SampleBest best;
    bool finite = true;
    const bool draws = scan.row.greedy == 0;
    for (const bool draw : {false, true}) {
      if (draw && !draws) break;
      scan.draw = draw;
      best = {};
      sample_plain(scan, p.logits + r * p.logits_stride, p.vocab, changed.data(), 0, 1, best,
                   finite);
      scan.largest = best.score;
    }
    p.state[r] = static_cast<int32_t>(finite ? SampleState::kDone : SampleState::kNonFinite);
    p.token[r] = finite ? best.id : -1;
  }
}

class HostGraph final : public StepGraph {
 public:
  explicit HostGraph(Launches launches) : launches_(std::move(launches)) {}
  int nodes() const override { return static_cast<int>(launches_.size()); }
  int64_t bytes() const override { return 1024 * static_cast<int64_t>(launches_.size()); }
  void run(Stream& stream) const {
    for (const auto& work : launches_) work(stream);
  }

 private:
  Launches launches_;
};

class HostQueue final : public LaunchQueue {
 public:
  void launch(std::function<void()> work) override {
    if (recording != nullptr)
      recording->push_back([work = std::move(work)](Stream&) { work(); });
    else
      work();
  }
};

class GraphDevice final : public Device {
 public:
  GraphDevice() : backend_(cpu_backend()) {
    backend_ = {"cuda",
                rope_table,
                embed_rows,
                queued<&Backend::hc_step, HcStepParams>,
                queued<&Backend::project, ProjectParams>,
                queued<&Backend::attention_append, AttentionAppendParams>,
                queued<&Backend::index_select, IndexSelectParams>,
                queued<&Backend::attention_core, AttentionCoreParams>,
                queued<&Backend::moe_route, MoeRouteParams>,
                queued<&Backend::moe_experts, MoeExpertsParams>,
                queued<&Backend::engram_gate, EngramGateParams>,
                queued<&Backend::head_logits, HeadLogitsParams>,
                queued<&Backend::markov_step, MarkovStepParams>};
  }
  const char* name() const override { return "cuda:0 (host memory, recorded steps)"; }
  const Backend& backend() const override { return backend_; }
  bool host_memory() const override { return false; }
  WeightLayout dense_layout(bool wide) const override { return cpu_device().dense_layout(wide); }
  bool reads_exl3(const Exl3Parts&, Exl3Use) const override { return false; }
  Exl3Order pack_exl3(const Exl3Parts&, std::byte*) const override { return Exl3Order::kTiles; }
  Status check_shape(const WorkspaceShape& s) const override { return cpu_device().check_shape(s); }
  int64_t workspace_bytes(const WorkspaceShape& s, const Stream& stream) const override {
    return cpu_device().workspace_bytes(s, stream);
  }
  Result<std::unique_ptr<Stream>> make_stream(int threads) override {
    return cpu_device().make_stream(threads);
  }
  void* allocate(int64_t bytes) override {
    return setting("TENSORFOLD_TEST_MEMORY", "none") ? nullptr : cpu_device().allocate(bytes);
  }
  void release(void* memory) override { cpu_device().release(memory); }
  int64_t free_bytes() const override { return cpu_device().free_bytes(); }

  void upload(void* to, const void* host, int64_t bytes, Stream& stream) override {
    broken = broken || recording != nullptr;
    cpu_device().upload(to, host, bytes, stream);
  }
  Status download(void* host, const void* from, int64_t bytes, Stream& stream) override {
    broken = broken || recording != nullptr;
    return cpu_device().download(host, from, bytes, stream);
  }
  Status synchronise(Stream& stream) override {
    broken = broken || recording != nullptr;
    return cpu_device().synchronise(stream);
  }
  void keep_rows(void* data, int64_t row_bytes, const int32_t* source, int rows,
                 Stream& stream) override {
    launch([=](Stream& s) { cpu_device().keep_rows(data, row_bytes, source, rows, s); }, stream);
  }
  void* native_queue(Stream&) override { return static_cast<LaunchQueue*>(&queue_); }
  void sum_parts(float* y, const void* parts, ValueType type, int ranks, int64_t count,
                 Stream& stream) override {
    launch([=](Stream& s) { cpu_device().sum_parts(y, parts, type, ranks, count, s); }, stream);
  }
  void narrow(uint16_t* y, const float* x, int64_t count, Stream& stream) override {
    launch([=](Stream& s) { cpu_device().narrow(y, x, count, s); }, stream);
  }
  void interleave(void* to, const void* parts, int ranks, int rows, int64_t bytes,
                  Stream& stream) override {
    launch([=](Stream& s) { cpu_device().interleave(to, parts, ranks, rows, bytes, s); }, stream);
  }
  void add(float* y, const float* x, int64_t count, Stream& stream) override {
    launch([=](Stream& s) { cpu_device().add(y, x, count, s); }, stream);
  }

  bool samples_rows() const override { return setting("TENSORFOLD_TEST_SAMPLES", "on"); }
  void sample_rows(const SampleRowsParams& p, Stream& stream) override {
    launch([p](Stream&) { choose(p); }, stream);
  }

  bool records_graphs() const override { return setting("TENSORFOLD_CUDA_GRAPHS", "on"); }
  Status begin_graph(Stream&) override {
    launches_.clear();
    recording = &launches_;
    broken = setting("TENSORFOLD_TEST_GRAPHS", "refuse") && parts_++ % 2 == 1;
    return ok_status();
  }
  Result<std::unique_ptr<StepGraph>> end_graph(Stream&) override {
    recording = nullptr;
    if (broken) return unavailable("it asks for what can't be recorded");
    return std::unique_ptr<StepGraph>(std::make_unique<HostGraph>(std::move(launches_)));
  }
  void run_graph(StepGraph& graph, Stream& stream) override {
    static_cast<HostGraph&>(graph).run(stream);
  }

 private:
  Backend backend_;
  HostQueue queue_;
  Launches launches_;
  int parts_ = 0;
};

}  // namespace
}  // namespace tensorfold::test

extern "C" __attribute__((visibility("default"))) tensorfold::Device* tensorfold_open_device(
    int abi_version, int index, char* error) {
  if (abi_version == tensorfold::kDeviceAbiVersion && index == 0)
    return new tensorfold::test::GraphDevice();
  std::snprintf(error, tensorfold::kDeviceErrorBytes, "no such device");
  return nullptr;
}
