// Logits of the rows that want them (engine/model/model_impl.h).
#include <algorithm>
#include <cmath>

#include "engine/model/model_impl.h"

namespace tensorfold {

Status ForwardModel::head(StepLogits& logits) {
  const auto rows = static_cast<int>(rows_.logits_rows.size());
  if (rows == 0) return ok_status();
  const int64_t vocab = config_.vocab_size;
  HeadLogitsParams p;
  p.rows = rows;
  p.row_index = logits_rows_on_device_;
  p.hidden = config_.hidden;
  p.hc = config_.hc_mult;
  p.norm_eps = static_cast<float>(config_.norm_eps);
  p.streams = b_.streams;
  p.pre = b_.pre[0];
  p.norm_weight = weights_->norm;
  p.head = &weights_->head;
  p.workspace = workspace();
  if (chooses_tokens() && logits.ask.size() == static_cast<size_t>(rows))
    return choose_tokens(p, logits);
  logits.values.resize(static_cast<size_t>(rows * vocab));
  const int at_once = device_->host_memory() ? rows : kLogitsRowsAtOnce;
  for (int first = 0; first < rows; first += at_once) {
    p.rows = std::min(at_once, rows - first);
    p.row_index = logits_rows_on_device_ + first;
    TF_RETURN_IF_ERROR(vocab_logits(p, logits.values.data() + first * vocab, d_.logits));
  }
  for (int i = 0; i < rows; ++i) {
    const auto r = static_cast<size_t>(rows_.logits_rows[static_cast<size_t>(i)]);
    const float* values = logits.values.data() + i * vocab;
    bool finite = true;
    for (int64_t v = 0; v < vocab; ++v) finite = finite && std::isfinite(values[v]);
    const auto slice = static_cast<size_t>(rows_.decoder.row_slice[r]);
    logits.rows.push_back({rows_.decoder.slots[slice], rows_.decoder.positions[r], finite});
    if (probe_ != nullptr)
      probe_->on_f32(Quantity::kLogits, 0, probe_row(rows_.decoder, static_cast<int>(r)),
                     std::span(values, static_cast<size_t>(vocab)));
  }
  return ok_status();
}

// Whether tokens can be chosen where the logits are: all of them are there and nobody looks.
bool ForwardModel::chooses_tokens() const {
  const bool whole = collective_.world_size() == 1 || exchange_ != nullptr;
  return device_->samples_rows() && whole && probe_ == nullptr &&
         config_.vocab_size <= kSampleVocabMax;
}

// `rows` rows of logits over the whole vocabulary become tokens and states on the device.
void ForwardModel::sample_on_device(int rows, const SampleRow* ask, int32_t* tokens,
                                    int32_t* states) {
  SampleRowsParams p;
  p.rows = rows;
  p.vocab = config_.vocab_size;
  const int world = collective_.world_size();
  p.logits = world == 1 ? d_.logits : d_.whole;
  p.logits_stride = vocab_part() * world;
  p.row = ask;
  p.token = tokens;
  p.state = states;
  device_->sample_rows(p, *stream_);
}

// Tokens in place of logits: only ids leave the device.
Status ForwardModel::choose_tokens(HeadLogitsParams p, StepLogits& logits) {
  const auto rows = static_cast<int>(logits.ask.size());
  const auto count = static_cast<size_t>(rows);
  device_->upload(d_.sample_rows, logits.ask.data(),
                  static_cast<int64_t>(count * sizeof(SampleRow)), *stream_);
  for (int first = 0; first < rows; first += kLogitsRowsAtOnce) {
    p.rows = std::min(kLogitsRowsAtOnce, rows - first);
    p.row_index = logits_rows_on_device_ + first;
    TF_RETURN_IF_ERROR(vocab_logits(p, nullptr, d_.logits));
    TF_RETURN_IF_ERROR(gather_logits(p.rows));
    sample_on_device(p.rows, d_.sample_rows + first, d_.sample_out + first,
                     d_.sample_out + rows + first);
  }
  logits.tokens.resize(2 * count);
  TF_RETURN_IF_ERROR(device_->download(logits.tokens.data(), d_.sample_out,
                                       static_cast<int64_t>(2 * count) * 4, *stream_));
  logits.states.assign(logits.tokens.begin() + rows, logits.tokens.end());
  logits.tokens.resize(count);
  logits.chosen = true;
  for (int i = 0; i < rows; ++i) {
    const auto r = static_cast<size_t>(rows_.logits_rows[static_cast<size_t>(i)]);
    const auto slice = static_cast<size_t>(rows_.decoder.row_slice[r]);
    const bool finite =
        logits.states[static_cast<size_t>(i)] != static_cast<int32_t>(SampleState::kNonFinite);
    logits.rows.push_back({rows_.decoder.slots[slice], rows_.decoder.positions[r], finite});
  }
  return ok_status();
}

// Logits over the whole vocabulary: whole [rows, vocab] in host memory, or nullptr: only this
// rank's part, on the device at `kept` [rows, part].
Status ForwardModel::vocab_logits(HeadLogitsParams p, float* whole, float* kept) {
  if (!device_->host_memory()) {
    p.logits = kept;
    p.logits_stride = vocab_part();
    backend_->head_logits(p, *stream_);
    return whole == nullptr ? ok_status() : fetch_vocab(p.rows, kept, whole);
  }
  if (collective_.world_size() == 1) {
    p.logits = whole;
    p.logits_stride = config_.vocab_size;
    backend_->head_logits(p, *stream_);
    return ok_status();
  }
  const int64_t chunk = vocab_part();
  gather_own_.assign(static_cast<size_t>(p.rows * chunk), 0.0f);
  p.logits = gather_own_.data();
  p.logits_stride = chunk;
  backend_->head_logits(p, *stream_);
  return gather_vocab(p.rows, whole);
}

// Device logits of this rank's part -> whole [rows, vocab].
Status ForwardModel::fetch_vocab(int rows, const float* part, float* whole) {
  const int64_t bytes = rows * vocab_part() * 4;
  if (collective_.world_size() == 1) return device_->download(whole, part, bytes, *stream_);
  if (exchange_ != nullptr && part == d_.logits) {
    TF_RETURN_IF_ERROR(gather_logits(rows));
    const int64_t vocab = config_.vocab_size, stride = vocab_part() * collective_.world_size();
    if (stride == vocab) return device_->download(whole, d_.whole, rows * vocab * 4, *stream_);
    for (int64_t r = 0; r < rows; ++r)
      TF_RETURN_IF_ERROR(
          device_->download(whole + r * vocab, d_.whole + r * stride, vocab * 4, *stream_));
    return ok_status();
  }
  gather_own_.resize(static_cast<size_t>(rows * vocab_part()));
  TF_RETURN_IF_ERROR(device_->download(gather_own_.data(), part, bytes, *stream_));
  return gather_vocab(rows, whole);
}

int64_t ForwardModel::vocab_part() const {
  return vocab_range(config_, 0, collective_.world_size()).size();
}

}  // namespace tensorfold
