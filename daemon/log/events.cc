#include "daemon/log/events.h"

namespace tensorfold::log {
namespace {

constexpr Event kEvents[] = {
    {"started", "e74cc6329559b103575068437cee484e"},
    {"ready", "a5a1402223c2fc1c7c83afb4377df350"},
    {"model_failed", "6a1747ae4cbf5564b78b9dc68061a0a3"},
    {"engine_failed", "43ccf5c93c86a0c2e12d6416690611cc"},
    {"preflight", "b823520d887e452484c9553cf0b403a7"},
    {"start_failed", "44c64d4f2b8ec5da1fc9533433db7a7a"},
    {"config_rejected", "63afdc3b2ca330f8cd3982717d569401"},
    {"reloaded", "05db1c8ecb5e400f3aa53bb3aff58294"},
    {"reload_rejected", "0227294f22d9008fd2350145e5890590"},
    {"draining", "9138bc5fde0a31620e33047a5b3f1a11"},
    {"drain_timeout", "d2fb40fe0879fea8b34c96a2da5ce622"},
    {"stopped", "32e1fd8502ff59139d3e6a8aafc9aff4"},
    {"control_change", "25e51f8ce442410594de2a4f273b6273"},
    {"spill_off", "b1f0b6f2c4c94d6c8c2f5d0f6e6a3b17"},
    {"spill_on", "5c7d0e0e7a9b4f0fb8d1c3a2e4f59682"},
    {"spill_damaged", "d6a1f93b20754ad9a3f4b88c1e7c5d20"},
    {"spill_untrue", "0f7d3a5e9c2b4d61b8e4a1c6f3d25a97"},
    {"health_alarm", "a94e1c7b3d5f4820961fb7d2e8c03a6b"},
    {"health_clear", "4b8d2f60e1a74c95a3c7d9e5b0f61284"},
    {"memory_short", "6e0b1d97c35f4a82b4e97f02d8a1c6f3"},
    {"memory_again", "f17c52a8de3b4069a8d4b6e19c07f52d"},
    {"engine_again", "e25c90b7f4d84a13b6d1f87a3c9e5042"},
    {"drafts_paused", "b7350bc6b9334bee80820082d564d4a1"},
    {"reply_loop", "9a2f4c0d7be64e0c8d35b1a6f2e07c94"},
    {"group_formed", "3d0c8f5a7e1b4c6f9a52b8d4e6c10f73"},
    {"group_lost", "c8e4a1f60b7d4f4e8d29a73e5b91d6a2"},
    {"request_done", "79fc9c22b32149810aa1ea8d277885c3"},
};

}  // namespace

std::span<const Event> event_table() { return kEvents; }

std::string_view message_id_of(std::string_view event) {
  for (const Event& one : kEvents)
    if (one.name == event) return one.message_id;
  return {};
}

}  // namespace tensorfold::log
