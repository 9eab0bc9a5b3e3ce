// Mixture of experts of one layer or drafter stage (engine/model/model_impl.h).
#include "engine/model/model_impl.h"

namespace tensorfold {

Status ForwardModel::moe(const LayerPlan& plan, const MoeWeights& w, RowSet& rows) {
  MoeRouteParams r;
  r.rows = rows.rows;
  r.prompt_rows = rows.prompt_rows;
  r.hidden = config_.hidden;
  r.experts = static_cast<int>(w.experts.size());
  r.topk = plan.drafter ? config_.dspark.experts_per_token : config_.experts_per_token;
  r.scale = static_cast<float>(config_.route_scale);
  r.temperature = static_cast<float>(config_.gate_temp);
  r.x = b_.x;
  r.gate = &w.gate;
  r.bias = w.bias;
  r.bias_vl = w.bias_vl;
  r.image = plan.drafter ? nullptr : rows.on_device.image;
  r.scores = b_.route_scores;
  r.ids = b_.route_ids;
  r.weights = b_.route_weights;
  r.workspace = workspace();
  backend_->moe_route(r, *stream_);
  const Quantity ids = plan.drafter ? Quantity::kDraftRouteIds : Quantity::kRouteIds;
  probe_i32(ids, plan.layer, rows, b_.route_ids, r.topk, r.topk, nullptr);
  if (!plan.drafter) probe_f32(Quantity::kRouteWeights, plan.layer, rows, b_.route_weights, r.topk);

  // Experts cut along their channels give partial sums, the shared one included. Experts dealt by
  // id are whole, and every rank holds the shared one: it is added after the sum over ranks.
  const bool cut = collective_.world_size() > 1 && !part_.experts_by_id;
  MoeExpertsParams p;
  p.rows = rows.rows;
  p.prompt_rows = rows.prompt_rows;
  p.hidden = config_.hidden;
  p.intermediate = static_cast<int>(part_.intermediate.size());
  p.experts = r.experts;
  p.topk = r.topk;
  p.swiglu_limit = static_cast<float>(config_.swiglu_limit);
  p.round_outputs = !cut;
  p.x = b_.x;
  p.ids = b_.route_ids;
  p.weights = b_.route_weights;
  p.expert = w.experts.data();
  p.shared = part_.experts_by_id ? nullptr : &w.shared;
  p.expert_on_device = w.experts_on_device;
  p.exl3_on_device = w.exl3_on_device;
  p.y = b_.y;
  p.workspace = workspace();
  backend_->moe_experts(p, *stream_);
  const int64_t count = int64_t{rows.rows} * config_.hidden;
  TF_RETURN_IF_ERROR(reduce(b_.y, rows.rows));
  if (!part_.experts_by_id) return ok_status();
  if (p.expert_on_device != nullptr) p.expert_on_device += p.experts;
  p.experts = p.topk = 0;
  p.expert = nullptr;
  p.shared = &w.shared;
  p.y = b_.y_shared;
  backend_->moe_experts(p, *stream_);
  device_->add(b_.y, b_.y_shared, count, *stream_);
  return ok_status();
}

}  // namespace tensorfold
