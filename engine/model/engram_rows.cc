// Engram hash and row exchange (engine/model/engram_rows.h).
#include "engine/model/engram_rows.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/formats.h"

namespace tensorfold {

Result<std::unique_ptr<EngramRows>> EngramRows::open(const WeightSource& source) {
  auto rows = std::make_unique<EngramRows>();
  rows->config_ = source.config().engram;
  rows->columns_ = source.part().engram_columns;
  const std::span<const int32_t> map = source.engram_token_map();
  const int pad = rows->config_.pad_token_id;
  if (static_cast<size_t>(source.config().vocab_size) > map.size() || pad < 0 ||
      static_cast<size_t>(pad) >= map.size())
    return data_loss("the Engram token map has " + std::to_string(map.size()) +
                     " entries for a vocabulary of " + std::to_string(source.config().vocab_size));
  rows->pad_ = map[static_cast<size_t>(pad)];
  TF_ASSIGN_OR_RETURN(rows->constants_, engram_constants(rows->config_));
  for (size_t i = 0; i < rows->config_.layers.size(); ++i) {
    TF_ASSIGN_OR_RETURN(auto table, source.open_engram(static_cast<int>(i)));
    if (table->width() != rows->config_.row_width)
      return data_loss("an Engram table is " + std::to_string(table->width()) +
                       " values wide, not " + std::to_string(rows->config_.row_width));
    rows->tables_.push_back(std::move(table));
  }
  return rows;
}

void EngramRows::hash(int index, std::span<const int32_t> engram_ids, int64_t position,
                      std::span<int64_t> rows) const {
  std::vector<int32_t> ids(static_cast<size_t>(config_.max_ngram), pad_);
  for (int back = 0; back < config_.max_ngram; ++back) {
    const int64_t p = position - back;
    if (p < 0 || engram_ids[static_cast<size_t>(p)] < 0) break;  // and all further back
    ids[static_cast<size_t>(back)] = engram_ids[static_cast<size_t>(p)];
  }
  constants_.hash(index, ids, rows);
}

Status EngramRows::read(int index, std::span<const int64_t> rows, Collective& collective,
                        uint16_t* out) {
  EngramTable& table = *tables_[static_cast<size_t>(index)];
  const auto columns = static_cast<size_t>(config_.columns());
  const auto own_columns = static_cast<size_t>(columns_.size());
  const size_t n = rows.size() / columns;
  const auto row_bytes = static_cast<size_t>(table.row_bytes());
  own_rows_.clear();
  for (size_t r = 0; r < n; ++r)
    for (size_t c = 0; c < own_columns; ++c)
      own_rows_.push_back(rows[r * columns + static_cast<size_t>(columns_.begin) + c]);
  own_.resize(own_rows_.size() * row_bytes);
  TF_RETURN_IF_ERROR(table.read(own_rows_, own_));
  const auto world = static_cast<size_t>(collective.world_size());
  all_.resize(own_.size() * world);
  TF_RETURN_IF_ERROR(collective.all_gather(own_, all_));
  const auto width = static_cast<size_t>(config_.row_width);
  values_.resize(width);
  for (size_t rank = 0; rank < world; ++rank)  // every rank holds as many columns, in rank order
    for (size_t r = 0; r < n; ++r)
      for (size_t c = 0; c < own_columns; ++c) {
        const size_t at = ((rank * n + r) * own_columns + c) * row_bytes;
        table.decode_row(std::span(all_).subspan(at, row_bytes), values_);
        uint16_t* to = out + (r * columns + rank * own_columns + c) * width;
        for (size_t i = 0; i < width; ++i) to[i] = f32_to_bf16(values_[i]);
      }
  return ok_status();
}

}  // namespace tensorfold
