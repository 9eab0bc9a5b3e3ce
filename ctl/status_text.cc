#include "ctl/status_text.h"

#include <cstdio>
#include <iterator>

namespace tensorfold::ctl {
namespace {

// Reads of the document; what is missing or of another type is an empty value.
const Json* at(const Json& document, std::string_view outer, std::string_view inner) {
  const Json* object = outer.empty() ? &document : document.find(outer);
  return object == nullptr ? nullptr : object->find(inner);
}

std::string format(const char* form, double value) {
  char text[64];
  std::snprintf(text, sizeof text, form, value);
  return text;
}

std::string count(double value) { return format("%.0f", value); }

std::string bytes_text(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return format(unit == 0 ? "%.0f " : "%.1f ", bytes) + kUnits[unit];
}

std::string duration_text(double seconds) {
  const auto s = static_cast<long long>(seconds);
  char text[64];
  if (s >= 86400) {
    std::snprintf(text, sizeof text, "%lld d %lld h", s / 86400, s % 86400 / 3600);
  } else if (s >= 3600) {
    std::snprintf(text, sizeof text, "%lld h %lld min", s / 3600, s % 3600 / 60);
  } else if (s >= 60) {
    std::snprintf(text, sizeof text, "%lld min %lld s", s / 60, s % 60);
  } else {
    std::snprintf(text, sizeof text, "%lld s", s);
  }
  return text;
}

std::string drafts_text(const Json& d) {
  const double drafted = status_number_at(d, "totals", "drafted");
  if (drafted <= 0) return "none";
  const double accepted = status_number_at(d, "totals", "accepted");
  std::string out = count(accepted) + " of " + count(drafted) + " accepted (" +
                    format("%.0f", 100 * accepted / drafted) + "%)";
  if (const double pauses = status_number_at(d, "totals", "draft_pauses"); pauses > 0)
    out += ", paused " + count(pauses) + " times, now for " +
           count(status_number_at(d, "drafting", "paused")) + " replies";
  if (const Json* drafting = d.find("drafting"))
    if (const Json* alarm = drafting->find("alarm"); alarm && alarm->is_bool() && alarm->as_bool())
      out += "; off: an alarm";
  return out;
}

std::string rank_text(const Json& rank) {
  const auto known = [&](const char* name) { return rank.find(name) != nullptr; };
  const auto number = [&](const char* name) { return status_number_at(rank, "", name); };
  std::string out = status_text_at(rank, "", "state");
  if (known("address")) out += " at " + status_text_at(rank, "", "address");
  if (known("resident_bytes")) out += ", " + bytes_text(number("resident_bytes")) + " resident";
  if (known("temperature_c")) out += ", " + format("%.0f C", number("temperature_c"));
  if (known("clock_mhz")) out += ", " + count(number("clock_mhz")) + " MHz";
  if (known("mean_exchange_us"))
    out += ", " + format("%.0f us an exchange", number("mean_exchange_us"));
  if (known("rtt_us")) out += ", " + format("%.0f us there and back", number("rtt_us"));
  return out;
}

// One line for each rank of a cluster.
void add_ranks(const Json& d, StatusLines& lines) {
  const Json* ranks = at(d, "cluster", "ranks");
  if (ranks == nullptr || !ranks->is_array()) return;
  for (const Json& rank : ranks->as_array())
    lines.emplace_back("rank " + count(status_number_at(rank, "", "rank")), rank_text(rank));
}

}  // namespace

double status_number_at(const Json& document, std::string_view outer, std::string_view inner) {
  const Json* value = at(document, outer, inner);
  return value != nullptr && value->is_number() ? value->as_double() : 0;
}

std::string status_text_at(const Json& document, std::string_view outer, std::string_view inner) {
  const Json* value = at(document, outer, inner);
  return value != nullptr && value->is_string() ? value->as_string() : "";
}

std::string state_with_detail(const std::string& state, const std::string& detail,
                              const char* before, const char* after) {
  return detail.empty() || detail == state ? state : state + before + detail + after;
}

StatusLines status_lines(const Json& d) {
  const std::string detail = status_text_at(d, "", "detail");
  const double pool = status_number_at(d, "cache", "pool_tokens");
  const double used = status_number_at(d, "cache", "used_tokens");
  StatusLines lines = {
      {"state", state_with_detail(status_text_at(d, "", "state"), detail, " (", ")")},
      {"model", status_text_at(d, "model", "name") + ", context " +
                    count(status_number_at(d, "model", "context")) + ", from " +
                    status_text_at(d, "model", "path")},
      {"version", status_text_at(d, "", "version")},
      {"uptime", duration_text(status_number_at(d, "", "uptime_s"))},
      {"listen", status_text_at(d, "", "listen")},
      {"slots", count(status_number_at(d, "slots", "busy")) + " of " +
                    count(status_number_at(d, "slots", "total")) + " busy, " +
                    count(status_number_at(d, "slots", "prefilling")) + " in prefill"},
      {"queue", count(status_number_at(d, "queue", "waiting")) + " of " +
                    count(status_number_at(d, "queue", "limit")) + " waiting"},
      {"speed",
       format("%.1f tok/s decode, ", status_number_at(d, "rates", "decode_tokens_per_second")) +
           format("%.1f tok/s prefill", status_number_at(d, "rates", "prefill_tokens_per_second"))},
      {"cache", count(used) + " of " + count(pool) + " positions (" +
                    format("%.0f", pool > 0 ? 100 * used / pool : 0) + "%)"},
      {"memory", bytes_text(status_number_at(d, "memory", "resident_bytes")) +
                     " resident, weights " +
                     bytes_text(status_number_at(d, "memory", "weight_bytes")) + ", cache " +
                     bytes_text(status_number_at(d, "memory", "cache_bytes"))},
      {"requests", count(status_number_at(d, "totals", "requests")) + " answered, " +
                       count(status_number_at(d, "http", "refused_total")) + " refused, " +
                       count(status_number_at(d, "http", "failed_total")) + " failed, " +
                       count(status_number_at(d, "http", "cancelled_total")) + " cancelled"},
      {"tokens", count(status_number_at(d, "totals", "prompt_tokens")) + " prompt (" +
                     count(status_number_at(d, "totals", "cached_tokens")) + " cached), " +
                     count(status_number_at(d, "totals", "completion_tokens")) + " reply"},
      {"drafts", drafts_text(d)},
  };
  add_ranks(d, lines);
  return lines;
}

std::string status_line(const std::string& name, const std::string& value) {
  std::string head = name + ":";
  head.resize(10, ' ');
  return head + value;
}

std::string status_summary(const Json& d) {
  const double pool = status_number_at(d, "cache", "pool_tokens");
  const double used = status_number_at(d, "cache", "used_tokens");
  return status_text_at(d, "", "state") + ", " + count(status_number_at(d, "slots", "busy")) +
         " running, " + count(status_number_at(d, "queue", "waiting")) + " waiting, " +
         format("%.1f tok/s", status_number_at(d, "rates", "decode_tokens_per_second")) +
         ", cache " + format("%.0f%%", pool > 0 ? 100 * used / pool : 0);
}

}  // namespace tensorfold::ctl
