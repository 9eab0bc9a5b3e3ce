// Timing of kernel benches: calls over rotating buffers in a CUDA graph, replayed; the table; the
// raw results as JSON.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

namespace tensorfold::bench {

#define TF_BENCH_CUDA(call)                                              \
  do {                                                                   \
    const cudaError_t tf_error = (call);                                 \
    if (tf_error != cudaSuccess) {                                       \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, \
                   cudaGetErrorString(tf_error));                        \
      std::exit(1);                                                      \
    }                                                                    \
  } while (0)

inline constexpr int kReplays = 40;
inline constexpr double kSparkBytesPerUs = 225e3;  // what a GB10 streams
inline constexpr double kSparkLaunchUs = 2.5;      // one dependent launch there

struct Sample {
  double median_us = 0, p10_us = 0, p90_us = 0;
};

// Microseconds of one of the `calls` that `enqueue(i)` queues on `stream`, i = 0 .. calls - 1:
// replays of a graph of them all. The first call is made outside of it, to load the module.
inline Sample time_calls_on(cudaStream_t stream, int calls, const std::function<void(int)>& enqueue,
                            int replays = kReplays) {
  enqueue(0);
  TF_BENCH_CUDA(cudaStreamSynchronize(stream));
  // For a profiler: one call of every case.
  if (std::getenv("TF_BENCH_ONCE") != nullptr) return {1, 1, 1};
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  TF_BENCH_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < calls; ++i) enqueue(i);
  TF_BENCH_CUDA(cudaStreamEndCapture(stream, &graph));
  TF_BENCH_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t begin, end;
  TF_BENCH_CUDA(cudaEventCreate(&begin));
  TF_BENCH_CUDA(cudaEventCreate(&end));
  std::vector<double> us;
  for (int r = 0; r < replays + 3; ++r) {
    TF_BENCH_CUDA(cudaEventRecord(begin, stream));
    TF_BENCH_CUDA(cudaGraphLaunch(exec, stream));
    TF_BENCH_CUDA(cudaEventRecord(end, stream));
    TF_BENCH_CUDA(cudaEventSynchronize(end));
    float ms = 0;
    TF_BENCH_CUDA(cudaEventElapsedTime(&ms, begin, end));
    if (r >= 3) us.push_back(static_cast<double>(ms) * 1e3 / calls);
  }
  std::sort(us.begin(), us.end());
  TF_BENCH_CUDA(cudaGraphExecDestroy(exec));
  TF_BENCH_CUDA(cudaGraphDestroy(graph));
  TF_BENCH_CUDA(cudaEventDestroy(begin));
  TF_BENCH_CUDA(cudaEventDestroy(end));
  return {us[us.size() / 2], us[us.size() / 10], us[us.size() * 9 / 10]};
}

// The same on a stream made for it.
inline Sample time_calls(int calls, const std::function<void(int, cudaStream_t)>& enqueue,
                         int replays = kReplays) {
  cudaStream_t stream;
  TF_BENCH_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const Sample sample = time_calls_on(
      stream, calls, [&](int i) { enqueue(i, stream); }, replays);
  TF_BENCH_CUDA(cudaStreamDestroy(stream));
  return sample;
}

struct Ceilings {
  double bytes_per_us = 0;    // read only
  double copy_per_us = 0;     // device copy, read plus written
  double weights_per_us = 0;  // product + dp4a
  double gap_us = 0;          // an empty kernel in a graph
};

struct Row {
  std::string name;
  Sample time;
  double bytes = 0;        // that must move at least once
  double weights = 0;      // decoded at least once
  double operations = 0;   // multiplies and adds
  double matrix_rate = 0;  // operations per us that limit the row; 0: not matrix-bound
  int launches = 1;
  double goal_us = 0;  // 0: none
  double error = -1;   // relative norm; negative: not compared
};

inline double limit_us(const Row& r, const Ceilings& c) {
  double limit = std::max(r.bytes / c.bytes_per_us, r.weights / c.weights_per_us);
  if (r.matrix_rate > 0) limit = std::max(limit, r.operations / r.matrix_rate);
  return limit;
}

inline double spark_us(const Row& r) {
  return r.bytes / kSparkBytesPerUs + kSparkLaunchUs * r.launches;
}

inline void print_table(const std::vector<Row>& rows, const Ceilings& c) {
  std::printf(
      "read %.2f TB/s, copy %.2f TB/s, product+dp4a %.2f T weights/s, empty kernel %.2f us\n",
      c.bytes_per_us / 1e6, c.copy_per_us / 1e6, c.weights_per_us / 1e6, c.gap_us);
  std::printf("%-34s %9s %9s %9s %8s %5s %8s %8s %9s %9s\n", "kernel", "median us", "p10", "p90",
              "limit", "%", "goal", "TFLOP/s", "GB10 us", "error");
  for (const Row& r : rows) {
    const double limit = limit_us(r, c);
    std::printf("%-34s %9.2f %9.2f %9.2f %8.2f %5.0f %8.1f %8.1f %9.1f %9.1e\n", r.name.c_str(),
                r.time.median_us, r.time.p10_us, r.time.p90_us, limit,
                100 * limit / r.time.median_us, r.goal_us, r.operations / r.time.median_us / 1e6,
                spark_us(r), r.error);
  }
  std::fflush(stdout);
}

inline void write_json(const std::string& path, const std::vector<Row>& rows, const Ceilings& c,
                       const std::string& commit) {
  std::FILE* f = std::fopen(path.c_str(), "w");
  if (f == nullptr) {
    std::fprintf(stderr, "%s: cannot be written\n", path.c_str());
    std::exit(1);
  }
  cudaDeviceProp device;
  TF_BENCH_CUDA(cudaGetDeviceProperties(&device, 0));
  std::fprintf(f,
               "{\"machine\": \"%s, %d multiprocessors, %d MB of L2\", \"commit\": \"%s\",\n"
               " \"replays\": %d, \"ceilings\": {\"read_tb_s\": %.3f, \"copy_tb_s\": %.3f, "
               "\"decode_t_weights_s\": %.3f, \"empty_kernel_us\": %.3f},\n \"rows\": [\n",
               device.name, device.multiProcessorCount, device.l2CacheSize >> 20, commit.c_str(),
               kReplays, c.bytes_per_us / 1e6, c.copy_per_us / 1e6, c.weights_per_us / 1e6,
               c.gap_us);
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& r = rows[i];
    std::fprintf(f,
                 "  {\"kernel\": \"%s\", \"median_us\": %.3f, \"p10_us\": %.3f, \"p90_us\": %.3f, "
                 "\"bytes\": %.0f, \"weights\": %.0f, \"operations\": %.0f, \"limit_us\": %.3f, "
                 "\"launches\": %d, \"goal_us\": %.1f, \"gb10_us\": %.1f, "
                 "\"relative_error\": %.3e}%s\n",
                 r.name.c_str(), r.time.median_us, r.time.p10_us, r.time.p90_us, r.bytes, r.weights,
                 r.operations, limit_us(r, c), r.launches, r.goal_us, spark_us(r), r.error,
                 i + 1 < rows.size() ? "," : "");
  }
  std::fprintf(f, " ]}\n");
  std::fclose(f);
}

}  // namespace tensorfold::bench
