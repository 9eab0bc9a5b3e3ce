// Shares of prompt rows. Owner: the planner.
#include "engine/sched/fill_shares.h"

#include <algorithm>

namespace tensorfold {

void FillShares::deal(std::vector<FillDemand>& demands, int64_t rows, int64_t generated_rows) {
  std::map<std::string, int64_t> credit;  // of those that fill now: the others are forgotten
  for (const FillDemand& d : demands) {
    const auto known = credit_.find(d.client);
    credit.try_emplace(d.client, known == credit_.end() ? 0 : known->second);
  }
  credit_ = std::move(credit);
  const auto key = [&](const FillDemand& d) {
    return d.left - d.waited_steps * rows - credit_.at(d.client);
  };
  std::sort(demands.begin(), demands.end(), [&](const FillDemand& a, const FillDemand& b) {
    const int64_t x = key(a);
    const int64_t y = key(b);
    return x != y ? x < y : a.request < b.request;
  });
  int64_t rows_left = rows;
  const auto give = [&](FillDemand& d, int64_t most) {
    int64_t n = std::min({most, rows_left, d.most - d.rows});
    if (d.generated) n = std::min(n, generated_rows);
    if (d.generated) generated_rows -= n;
    d.rows += n;
    rows_left -= n;
    return n;
  };
  const auto clients = static_cast<int64_t>(credit_.size());
  if (clients == 0) return;
  std::map<std::string, int64_t> dealt;
  for (FillDemand& d : demands) {
    int64_t& had = dealt[d.client];
    had += give(d, rows / (2 * clients) - had);
  }
  for (FillDemand& d : demands) dealt[d.client] += give(d, rows_left);
  const int64_t fair = (rows - rows_left) / clients;
  for (auto& [client, owed] : credit_) owed += fair - dealt[client];
}

}  // namespace tensorfold
