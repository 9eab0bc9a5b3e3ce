// tfctl cache: what the prefix cache of the running daemon holds, and emptying it.
#include <cstdio>
#include <ostream>
#include <string>

#include "ctl/control_client.h"
#include "ctl/control_wait.h"
#include "ctl/status_text.h"
#include "ctl/verbs.h"
#include "daemon/control/protocol.h"

namespace tensorfold::ctl {
namespace {

constexpr double kFlushWaitSeconds = 60;  // a step takes no longer

int64_t int_at(const Json& document, std::string_view group, std::string_view name) {
  return static_cast<int64_t>(status_number_at(document, group, name));
}

std::string percent(int64_t part, int64_t whole) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f%%",
                whole > 0 ? 100.0 * static_cast<double>(part) / static_cast<double>(whole) : 0.0);
  return text;
}

std::string mib(int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f MiB", static_cast<double>(bytes) / 1048576.0);
  return text;
}

void print_status(const Json& d, std::ostream& out) {
  const int64_t pool = int_at(d, "pool", "tokens");
  const int64_t in_use = int_at(d, "pool", "in_use_tokens");
  const int64_t cached = int_at(d, "pool", "cached_tokens");
  const int64_t lookups = int_at(d, "totals", "lookups");
  const int64_t saved = int_at(d, "totals", "saved_tokens");
  const int64_t prompt = int_at(d, "totals", "prompt_tokens");
  out << "pool        " << pool << " tokens: " << in_use << " in use (" << percent(in_use, pool)
      << "), " << cached << " cached (" << percent(cached, pool) << ")\n";
  out << "snapshots   " << int_at(d, "snapshots", "count") << ", "
      << mib(int_at(d, "snapshots", "bytes")) << " of " << mib(int_at(d, "snapshots", "bytes_max"))
      << "; " << int_at(d, "", "blocks") << " whole blocks\n";
  out << "hits        " << int_at(d, "totals", "hits") << " of " << lookups << " prompts ("
      << percent(int_at(d, "totals", "hits"), lookups) << ")\n";
  out << "saved       " << saved << " of " << prompt << " prompt tokens (" << percent(saved, prompt)
      << ")\n";
  out << "kept        " << int_at(d, "totals", "kept") << " snapshots, "
      << int_at(d, "totals", "evicted") << " dropped for room, " << int_at(d, "totals", "flushes")
      << " flushes\n";
  const Json* spill = d.find("spill");
  const Json* state = spill == nullptr ? nullptr : spill->find("state");
  if (state == nullptr || !state->is_string()) return;
  out << "disk        " << state->as_string() << ": " << mib(int_at(d, "spill", "bytes")) << " of "
      << mib(int_at(d, "spill", "bytes_max")) << " in " << int_at(d, "spill", "files") << " files; "
      << int_at(d, "spill", "restored_tokens") << " tokens restored for "
      << int_at(d, "spill", "restored") << " prompts, " << int_at(d, "spill", "damaged")
      << " files damaged, " << int_at(d, "spill", "errors") << " errors\n";
}

}  // namespace

int run_cache_status(const Invocation& call) {
  std::string text;
  const auto document = control_get(call, control::kCachePath, &text);
  if (!document.ok()) return control_failure(call, document.status());
  if (call.json) {
    *call.out << text << "\n";
  } else {
    print_status(*document, *call.out);
  }
  return kExitOk;
}

int run_cache_flush(const Invocation& call) {
  std::string path(control::kCacheFlushPath);
  if (call.has("--spill")) path += "?spill=1";
  std::string text;
  const auto document = control_post(call, path, "", &text);
  if (!document.ok()) return control_failure(call, document.status());
  const int64_t before = int_at(*document, "", "flushes_before");
  Status failure;
  const bool done =
      look_until(call, control::kCachePath, kFlushWaitSeconds, [&](const Result<Json>& now) {
        if (!now.ok()) failure = now.status();
        return !now.ok() || int_at(*now, "totals", "flushes") > before;
      });
  if (!failure.ok()) return control_failure(call, failure);
  if (!done) {
    *call.err << "tfctl: asked for, but not done yet\n";
    return kExitTimeout;
  }
  if (call.json) {
    *call.out << text << "\n";
  } else {
    *call.out << "flushed: " << int_at(*document, "", "snapshots") << " snapshots ("
              << mib(int_at(*document, "", "snapshot_bytes")) << "), "
              << int_at(*document, "", "cached_tokens") << " pool tokens\n";
  }
  return kExitOk;
}

}  // namespace tensorfold::ctl
