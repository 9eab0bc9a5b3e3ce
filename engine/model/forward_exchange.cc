// Where the ranks of a step meet (engine/model/model_impl.h): on device memory where the collective
// can, queued like any other operation; else through the host's. Both add and lay out in rank
// order, so they give the same bits.
#include <algorithm>
#include <cstring>

#include "engine/model/model_impl.h"

namespace tensorfold {

// Room for what all ranks give in one exchange on the device: the logits of a call, and some rows
// of everything else. More rows go in pieces.
Status ForwardModel::allocate_exchange() {
  const int64_t world = collective_.world_size();
  if (world == 1 || device_->host_memory()) return ok_status();
  const int64_t logits_rows = std::max<int64_t>(kLogitsRowsAtOnce, options_.slots);
  const int64_t engram_row =
      engram_ != nullptr ? int64_t{config_.hc_mult + 1} * config_.hidden * 2 : 0;
  const int64_t row = std::max(int64_t{config_.hidden} * 4, engram_row);
  exchange_bytes_ = world * std::max(logits_rows * vocab_part() * 4, kExchangeRowsLeast * row);
  TF_RETURN_IF_ERROR(take(exchange_memory_, exchange_bytes_));
  if (options_.exchange == ValueType::kBf16)
    TF_RETURN_IF_ERROR(take(b_.narrow, int64_t{options_.rows_max} * config_.hidden));
  return take(d_.whole, logits_rows * vocab_part() * world);
}

// Runs a step's work with the way in which its ranks meet.
Status ForwardModel::with_exchange(const std::function<Status()>& work) {
  exchange_ = nullptr;
  if (collective_.world_size() > 1 && device_->native_queue(*stream_) != nullptr)
    exchange_ = collective_.on_device();
  if (exchange_ == nullptr) return work();
  exchange_->begin();
  const Status status = work();
  const Status met = exchange_->end();
  exchange_ = nullptr;
  return met.ok() ? status : met;
}

// own [rows][row_bytes] of every rank, in pieces: after each, `use` queues what is done with
// exchange_memory_ [ranks][rows of the piece][row_bytes].
Status ForwardModel::gather_on_device(const void* own, int rows, int64_t row_bytes,
                                      const std::function<void(int first, int rows)>& use) {
  const auto each = static_cast<int>(
      std::min<int64_t>(rows, exchange_bytes_ / (collective_.world_size() * row_bytes)));
  TF_CHECK(each > 0 || rows == 0);
  for (int first = 0; first < rows; first += each) {
    const int count = std::min(each, rows - first);
    TF_RETURN_IF_ERROR(exchange_->gather(static_cast<const std::byte*>(own) + first * row_bytes,
                                         exchange_memory_, static_cast<size_t>(count * row_bytes),
                                         device_->native_queue(*stream_)));
    use(first, count);
  }
  return ok_status();
}

// data [rows, hidden]: becomes the sum over ranks, of fp32 or of what is left after rounding to
// bf16; added in fp32.
Status ForwardModel::reduce(float* data, int rows) {
  if (collective_.world_size() == 1) return ok_status();
  if (exchange_ != nullptr) return reduce_on_device(data, rows);
  const int64_t count = int64_t{rows} * config_.hidden;
  if (device_->host_memory()) return reduce_on_host({data, static_cast<size_t>(count)});
  reduce_host_.resize(static_cast<size_t>(count));
  TF_RETURN_IF_ERROR(device_->download(reduce_host_.data(), data, count * 4, *stream_));
  TF_RETURN_IF_ERROR(reduce_on_host(reduce_host_));
  device_->upload(data, reduce_host_.data(), count * 4, *stream_);
  return ok_status();
}

Status ForwardModel::reduce_on_device(float* data, int rows) {
  const int64_t width = config_.hidden;
  const ValueType type = options_.exchange;
  const void* own = data;
  if (type == ValueType::kBf16) {
    device_->narrow(b_.narrow, data, rows * width, *stream_);
    own = b_.narrow;
  }
  return gather_on_device(own, rows, width * (type == ValueType::kBf16 ? 2 : 4),
                          [&](int first, int n) {
                            device_->sum_parts(data + first * width, exchange_memory_, type,
                                               collective_.world_size(), n * width, *stream_);
                          });
}

Status ForwardModel::reduce_on_host(std::span<float> data) {
  if (options_.exchange == ValueType::kF32)
    return collective_.all_reduce_sum(data, reduce_scratch_);
  const auto count = static_cast<int64_t>(data.size());
  const auto world = static_cast<size_t>(collective_.world_size());
  narrow_host_.resize(data.size());
  gather_bf16_.resize(data.size() * world);
  cpu_device().narrow(narrow_host_.data(), data.data(), count, *stream_);
  TF_RETURN_IF_ERROR(collective_.all_gather(std::as_bytes(std::span<const uint16_t>(narrow_host_)),
                                            std::as_writable_bytes(std::span(gather_bf16_))));
  cpu_device().sum_parts(data.data(), gather_bf16_.data(), ValueType::kBf16,
                         collective_.world_size(), count, *stream_);
  return ok_status();
}

// Every rank's `width` columns of bf16 rows, side by side in rank order.
Status ForwardModel::gather_columns(const uint16_t* own, int rows, int64_t width, uint16_t* whole) {
  const int world = collective_.world_size();
  if (exchange_ != nullptr)
    return gather_on_device(own, rows, width * 2, [&](int first, int n) {
      device_->interleave(whole + first * width * world, exchange_memory_, world, n, width * 2,
                          *stream_);
    });
  const int64_t count = rows * width;
  gather_bf16_.resize(static_cast<size_t>(count * world));
  const uint16_t* mine = own;
  if (!device_->host_memory()) {
    engram_host_.resize(static_cast<size_t>(count * world));
    TF_RETURN_IF_ERROR(device_->download(engram_host_.data(), own, count * 2, *stream_));
    mine = engram_host_.data();
  }
  TF_RETURN_IF_ERROR(
      collective_.all_gather(std::as_bytes(std::span(mine, static_cast<size_t>(count))),
                             std::as_writable_bytes(std::span(gather_bf16_))));
  uint16_t* to = device_->host_memory() ? whole : engram_host_.data();
  cpu_device().interleave(to, gather_bf16_.data(), world, rows, width * 2, *stream_);
  if (to != whole) device_->upload(whole, to, count * world * 2, *stream_);
  return ok_status();
}

// gather_own_ [rows, chunk] of every rank -> whole [rows, vocab].
Status ForwardModel::gather_vocab(int rows, float* whole) {
  const int world = collective_.world_size();
  const int64_t chunk = vocab_part();
  gather_all_.resize(static_cast<size_t>(rows * chunk * world));
  TF_RETURN_IF_ERROR(collective_.all_gather(
      std::as_bytes(std::span(gather_own_).first(static_cast<size_t>(rows * chunk))),
      std::as_writable_bytes(std::span(gather_all_))));
  for (int64_t rank = 0; rank < world; ++rank) {
    const Range range = vocab_range(config_, static_cast<int>(rank), world);
    for (int64_t r = 0; r < rows; ++r)
      std::memcpy(whole + r * config_.vocab_size + range.begin,
                  gather_all_.data() + (rank * rows + r) * chunk,
                  static_cast<size_t>(range.size()) * 4);
  }
  return ok_status();
}

// d_.logits [rows, part] of every rank -> d_.whole [rows, ranks * part], whose first values are
// those of the whole vocabulary. One rank: nothing to do.
Status ForwardModel::gather_logits(int rows) {
  const int world = collective_.world_size();
  if (world == 1) return ok_status();
  const int64_t part = vocab_part();
  return gather_on_device(d_.logits, rows, part * 4, [&](int first, int n) {
    device_->interleave(d_.whole + first * part * world, exchange_memory_, world, n, part * 4,
                        *stream_);
  });
}

}  // namespace tensorfold
