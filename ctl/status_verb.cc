// tfctl status and tfctl health: the document of GET /status, as text or as it is.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "ctl/control_client.h"
#include "ctl/verbs.h"
#include "daemon/control/protocol.h"

namespace tensorfold::ctl {
namespace {

constexpr auto kPollGap = std::chrono::milliseconds(200);

// Reads of the document; what is missing or of another type is an empty value.
const Json* at(const Json& document, std::string_view outer, std::string_view inner) {
  const Json* object = outer.empty() ? &document : document.find(outer);
  return object == nullptr ? nullptr : object->find(inner);
}

std::string text_at(const Json& document, std::string_view outer, std::string_view inner) {
  const Json* value = at(document, outer, inner);
  return value != nullptr && value->is_string() ? value->as_string() : "";
}

double number_at(const Json& document, std::string_view outer, std::string_view inner) {
  const Json* value = at(document, outer, inner);
  return value != nullptr && value->is_number() ? value->as_double() : 0;
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

using Lines = std::vector<std::pair<std::string, std::string>>;

std::string drafts_text(const Json& d) {
  const double drafted = number_at(d, "totals", "drafted");
  if (drafted <= 0) return "none";
  const double accepted = number_at(d, "totals", "accepted");
  std::string out = count(accepted) + " of " + count(drafted) + " accepted (" +
                    format("%.0f", 100 * accepted / drafted) + "%)";
  if (const double pauses = number_at(d, "totals", "draft_pauses"); pauses > 0)
    out += ", paused " + count(pauses) + " times, now for " +
           count(number_at(d, "drafting", "paused")) + " replies";
  return out;
}

std::string with_detail(const std::string& state, const std::string& detail, const char* before,
                        const char* after) {
  return detail.empty() || detail == state ? state : state + before + detail + after;
}

Lines status_lines(const Json& d) {
  const std::string detail = text_at(d, "", "detail");
  const double pool = number_at(d, "cache", "pool_tokens");
  const double used = number_at(d, "cache", "used_tokens");
  return {
      {"state", with_detail(text_at(d, "", "state"), detail, " (", ")")},
      {"model", text_at(d, "model", "name") + ", context " +
                    count(number_at(d, "model", "context")) + ", from " +
                    text_at(d, "model", "path")},
      {"version", text_at(d, "", "version")},
      {"uptime", duration_text(number_at(d, "", "uptime_s"))},
      {"listen", text_at(d, "", "listen")},
      {"slots", count(number_at(d, "slots", "busy")) + " of " +
                    count(number_at(d, "slots", "total")) + " busy, " +
                    count(number_at(d, "slots", "prefilling")) + " in prefill"},
      {"queue", count(number_at(d, "queue", "waiting")) + " of " +
                    count(number_at(d, "queue", "limit")) + " waiting"},
      {"speed",
       format("%.1f tok/s decode, ", number_at(d, "rates", "decode_tokens_per_second")) +
           format("%.1f tok/s prefill", number_at(d, "rates", "prefill_tokens_per_second"))},
      {"cache", count(used) + " of " + count(pool) + " positions (" +
                    format("%.0f", pool > 0 ? 100 * used / pool : 0) + "%)"},
      {"memory", bytes_text(number_at(d, "memory", "resident_bytes")) + " resident, weights " +
                     bytes_text(number_at(d, "memory", "weight_bytes")) + ", cache " +
                     bytes_text(number_at(d, "memory", "cache_bytes"))},
      {"requests", count(number_at(d, "totals", "requests")) + " answered, " +
                       count(number_at(d, "http", "refused_total")) + " refused, " +
                       count(number_at(d, "http", "failed_total")) + " failed, " +
                       count(number_at(d, "http", "cancelled_total")) + " cancelled"},
      {"tokens", count(number_at(d, "totals", "prompt_tokens")) + " prompt (" +
                     count(number_at(d, "totals", "cached_tokens")) + " cached), " +
                     count(number_at(d, "totals", "completion_tokens")) + " reply"},
      {"drafts", drafts_text(d)},
  };
}

}  // namespace

int run_status(const Invocation& call) {
  std::string text;
  const auto document = control_get(call, control::kStatusPath, &text);
  if (!document.ok()) return control_failure(call, document.status());
  if (call.json) {
    *call.out << text << "\n";
    return kExitOk;
  }
  for (const auto& [name, value] : status_lines(*document)) {
    std::string head = name + ":";
    head.resize(10, ' ');
    *call.out << head << value << "\n";
  }
  return kExitOk;
}

int run_health(const Invocation& call) {
  double wait_s = 0;
  if (call.has("--wait")) {
    const std::string text = call.get("--wait");
    char* end = nullptr;
    wait_s = std::strtod(text.c_str(), &end);
    if (end == text.c_str() || *end != '\0' || !(wait_s >= 0 && wait_s <= 86400)) {
      *call.err << "tfctl: --wait needs seconds in 0..86400, not '" << text << "'\n";
      return kExitUsage;
    }
  }
  const auto deadline = std::chrono::steady_clock::now() +
                        std::chrono::milliseconds(static_cast<long long>(wait_s * 1000));
  for (;;) {
    const auto document = control_get(call, control::kStatusPath);
    const std::string state = document.ok() ? text_at(*document, "", "state") : "";
    const bool ready = state == "ready";
    const bool denied = !document.ok() && document.status().reason() == "permission";
    if (!ready && !denied && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(kPollGap);
      continue;
    }
    if (!document.ok()) return control_failure(call, document.status());
    const std::string detail = text_at(*document, "", "detail");
    if (call.json) {
      *call.out << "{\"schema_version\": " << control::kSchemaVersion
                << ", \"ready\": " << (ready ? "true" : "false") << ", \"state\": \"" << state
                << "\"}\n";
    } else {
      *call.out << with_detail(state, detail, ": ", "") << "\n";
    }
    return ready ? kExitOk : kExitNotReady;
  }
}

}  // namespace tensorfold::ctl
