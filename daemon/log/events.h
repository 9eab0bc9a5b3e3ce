// Identities of the journal's events: a line with TF_EVENT gets the MESSAGE_ID of that event, which
// systemd/catalog/tensorfoldd.catalog explains. An identity never changes its meaning.
#pragma once

#include <span>
#include <string_view>

namespace tensorfold::log {

struct Event {
  std::string_view name;        // the value of TF_EVENT
  std::string_view message_id;  // 32 hexadecimal digits
};

std::span<const Event> event_table();
// Empty for a name that is not in the table.
std::string_view message_id_of(std::string_view event);

}  // namespace tensorfold::log
