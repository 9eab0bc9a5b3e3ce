// The figures of `tfctl bench` against a server of known speed (bench_script.h): within 2% of what
// the script says, whatever the machine does.
#include "ctl/bench/runs.h"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <fstream>
#include <iterator>

#include "ctl/bench/event_stream.h"
#include "ctl/bench/figures.h"
#include "tests/ctl/bench_script.h"

using namespace tensorfold;
using namespace tensorfold::ctl::bench;

namespace {

constexpr double kWithinPercent = 2;

struct Fixture {
  ScriptedServer server;
  Target target{&server, "scripted", false};
  Settings settings;

  Fixture() {
    script_now_us = 0;
    settings.set = prompt_set("a");
    settings.tokens = settings.set->max_tokens;
    settings.seed = 7;
  }
};

Report need(Result<Report> report) {
  BOOST_REQUIRE_MESSAGE(report.ok(), report.status().message());
  return *std::move(report);
}

// The number at "cells.0.decode_tps.median".
double at(const Json& document, const std::string& path) {
  const Json* value = &document;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string key = path.substr(begin, end - begin);
    if (value->is_array()) {
      const auto index = static_cast<size_t>(std::stoul(key));
      BOOST_REQUIRE_MESSAGE(index < value->as_array().size(), path);
      value = &value->as_array()[index];
    } else {
      value = value->find(key);
    }
    BOOST_REQUIRE_MESSAGE(value != nullptr, path << " in " << dump_json_compact(document));
    begin = end + 1;
  }
  return value->is_number() ? value->as_double() : std::nan("");
}

#define CHECK_FIGURE(report, path, truth) \
  BOOST_CHECK_CLOSE(at((report).json, path), static_cast<double>(truth), kWithinPercent)

std::string content_of(const Json& body) {
  return body.find("messages")->as_array()[0].find("content")->as_string();
}

int64_t variant_of(const Json& body) {
  const std::string text = content_of(body);
  return std::stoll(text.substr(text.rfind("(variant ") + 9));
}

std::string file_text(const std::string& name) {
  std::ifstream file(std::string(TF_TEST_DATA) + "/bench/" + name, std::ios::binary);
  BOOST_REQUIRE_MESSAGE(file.good(), name);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A wire that gives one reply's bytes in two pieces.
class Pieces final : public Wire {
 public:
  Pieces(std::string bytes, size_t cut) : bytes_(std::move(bytes)), cut_(cut) {}
  int64_t now_us() override { return 0; }
  void sleep_us(int64_t) override {}
  Result<HttpReply> exchange(const HttpRequest&, const ctl::BodySink& sink) override {
    HttpReply reply;
    reply.status = 200;
    reply.sent_us = 500'000;
    reply.end_us = 2'000'000;
    TF_RETURN_IF_ERROR(sink(1'000'000, std::string_view(bytes_).substr(0, cut_)));
    TF_RETURN_IF_ERROR(sink(2'000'000, std::string_view(bytes_).substr(cut_)));
    return reply;
  }

 private:
  std::string bytes_;
  size_t cut_;
};

Result<Sample> read_pieces(const std::string& bytes, size_t cut) {
  Pieces wire(bytes, std::min(cut, bytes.size()));
  return complete(Target{&wire, "m", false}, Ask{});
}

}  // namespace

BOOST_FIXTURE_TEST_CASE(decode_speed_and_its_median, Fixture) {
  settings.repetitions = 3;
  int call = 0;
  server.script = [&](const Json& body, int64_t) {
    Script one;
    one.wait_us = 300'000;
    if (*body.find("max_tokens")->as_int64() == 32) return one;  // a warm-up
    constexpr int64_t kRoundUs[] = {10'000, 20'000, 12'500};
    one.round_us = kRoundUs[call++ % 3];
    return one;
  };
  const Report report = need(run_decode(target, settings));
  for (const char* cell : {"cells.0", "cells.1", "cells.2"}) {
    const std::string path = std::string(cell) + ".decode_tps.";
    CHECK_FIGURE(report, path + "all.0", 100);
    CHECK_FIGURE(report, path + "all.1", 50);
    CHECK_FIGURE(report, path + "all.2", 80);
    CHECK_FIGURE(report, path + "median", 80);
    CHECK_FIGURE(report, std::string(cell) + ".first_token_s.median", 0.3);
  }
  BOOST_TEST(report.failures.empty());
  BOOST_TEST(report.text.find("identical") != std::string::npos);
}

BOOST_FIXTURE_TEST_CASE(decode_of_events_with_several_tokens, Fixture) {
  // 3.8 tokens a round of 37 ms, as drafting gives.
  server.script = [](const Json&, int64_t) {
    Script one;
    one.round_us = 37'000;
    one.tokens = {4, 6, 1, 5, 3};
    return one;
  };
  const Report report = need(run_decode(target, settings));
  CHECK_FIGURE(report, "cells.0.decode_tps.median", 3.8 / 0.037);
  BOOST_TEST(at(report.json, "cells.0.completion_tokens.0") == 512);
}

BOOST_FIXTURE_TEST_CASE(replies_past_their_end_give_no_text, Fixture) {
  settings.streams = {2};
  settings.tokens = 200;
  settings.ignore_eos = true;
  server.script = [](const Json&, int64_t) {
    Script one;
    one.wait_us = 100'000;
    one.text_rounds = 40;
    return one;
  };
  const Report alone = need(run_decode(target, settings));
  CHECK_FIGURE(alone, "cells.0.decode_tps.median", 100);
  const Report both = need(run_concurrent(target, settings));
  CHECK_FIGURE(both, "cells.0.stream_tps.median", 100);
  CHECK_FIGURE(both, "cells.0.steady_tps.median", 200);
}

BOOST_FIXTURE_TEST_CASE(concurrent_total_steady_and_first_tokens, Fixture) {
  settings.streams = {1, 4};
  settings.tokens = 256;
  settings.repetitions = 2;
  server.script = [](const Json& body, int64_t) {
    Script one;
    one.wait_us = 500'000 + 250'000 * variant_of(body);
    one.round_us = 20'000;
    return one;
  };
  const Report report = need(run_concurrent(target, settings));
  const double reply_s = 255 * 0.02;
  CHECK_FIGURE(report, "cells.0.aggregate_tps.median", 256 / (0.5 + reply_s));
  CHECK_FIGURE(report, "cells.1.aggregate_tps.median", 4 * 256 / (1.25 + reply_s));
  CHECK_FIGURE(report, "cells.1.of_linear", (0.5 + reply_s) / (1.25 + reply_s));
  CHECK_FIGURE(report, "cells.1.steady_tps.median", 4 * 50);
  CHECK_FIGURE(report, "cells.1.stream_tps.median", 50);
  CHECK_FIGURE(report, "cells.1.first_token_s.p50", 0.75);
  CHECK_FIGURE(report, "cells.1.first_token_s.p99", 1.25);
  CHECK_FIGURE(report, "cells.1.gap_s.p99", 0.02);
  BOOST_TEST(at(report.json, "cells.1.first_token_s.count") == 8);
}

BOOST_FIXTURE_TEST_CASE(gaps_while_a_long_prompt_fills, Fixture) {
  settings.streams = {2};
  settings.tokens = 400;
  settings.fill_tokens = 6000;
  server.script = [](const Json&, int64_t prompt) {
    Script one;
    if (prompt > 4000) {  // begins at 3 s and fills for 2.5
      one.start_us = 3'000'000;
      one.prefill_tps = 2400;
      return one;
    }
    one.round_us = 20'000;
    one.stall_from_us = 3'000'000;
    one.stall_to_us = 5'500'000;
    one.stall_us = 620'000;
    return one;
  };
  const Report report = need(run_concurrent(target, settings));
  CHECK_FIGURE(report, "cells.0.long_prompt.gap_s.p99", 0.62);
  CHECK_FIGURE(report, "cells.0.long_prompt.first_token_s.median", 2.5);
  CHECK_FIGURE(report, "cells.0.gap_s.p50", 0.02);
  BOOST_TEST(report.failures.empty());
}

BOOST_FIXTURE_TEST_CASE(sustained_window, Fixture) {
  settings.streams = {2};
  settings.tokens = 100;
  settings.window_s = 10;
  server.script = [](const Json&, int64_t) {
    Script one;
    one.wait_us = 100'000;
    one.round_us = 20'000;
    return one;
  };
  const Report report = need(run_sustained(target, settings));
  CHECK_FIGURE(report, "cells.0.aggregate_tps", 2 * 100 / (0.1 + 99 * 0.02));
  CHECK_FIGURE(report, "cells.0.stream_tps.median", 50);
  CHECK_FIGURE(report, "cells.0.first_token_s.p50", 0.1);
  // The last reply of each stream ends behind the window: what it gave inside counts.
  BOOST_TEST(at(report.json, "cells.0.first_token_s.count") == 10);
}

BOOST_FIXTURE_TEST_CASE(prefill_by_words_and_by_ids, Fixture) {
  settings.lengths = {8192, 32768};
  settings.repetitions = 2;
  server.script = [](const Json&, int64_t) {
    Script one;
    one.prefill_tps = 2500;
    return one;
  };
  for (const bool ids : {false, true}) {
    server.tokenizes = ids;
    const Report report = need(run_prefill(target, settings));
    BOOST_TEST(report.json.find("prompts")->as_string() == (ids ? "token ids" : "words"));
    CHECK_FIGURE(report, "cells.0.prefill_tps.median", 2500);
    CHECK_FIGURE(report, "cells.1.first_token_s.median", 32768 / 2500.0);
    BOOST_CHECK_CLOSE(at(report.json, "cells.1.prompt_tokens.0"), 32768.0, ids ? 1e-9 : 0.1);
    BOOST_TEST(report.failures.empty());
  }
}

BOOST_FIXTURE_TEST_CASE(a_prompt_from_a_cache_is_no_prefill, Fixture) {
  settings.lengths = {2000};
  settings.repetitions = 3;
  int call = 0;
  server.script = [&](const Json&, int64_t prompt) {
    Script one;
    one.prefill_tps = 2500;
    if (prompt < 1900) return one;
    if (++call == 2) {
      one.cached_tokens = 1024;
      one.prefill_tps = 5000;
    } else if (call == 3) {
      one.cached_tokens.reset();
    }
    return one;
  };
  const Report report = need(run_prefill(target, settings));
  BOOST_REQUIRE(report.failures.size() == 1);
  BOOST_TEST(report.failures[0].find("repetition 2 was not cold: 1024 of its") !=
             std::string::npos);
  CHECK_FIGURE(report, "cells.0.prefill_tps.median", 2500);
  BOOST_TEST(std::isnan(at(report.json, "cells.0.prefill_tps.all.1")));
  BOOST_TEST(std::isnan(at(report.json, "cells.0.cached_tokens.2")));
}

BOOST_FIXTURE_TEST_CASE(prompts_never_begin_alike, Fixture) {
  std::vector<std::string> starts;
  server.script = [&](const Json& body, int64_t) {
    starts.push_back(content_of(body).substr(0, 20));
    return Script{};
  };
  settings.lengths = {300};
  settings.repetitions = 8;
  need(run_prefill(target, settings));
  settings.seed = 8;
  need(run_prefill(target, settings));
  std::sort(starts.begin(), starts.end());
  BOOST_TEST(starts.size() == 20);
  BOOST_TEST((std::adjacent_find(starts.begin(), starts.end()) == starts.end()));
}

BOOST_FIXTURE_TEST_CASE(depth_beside_a_short_prompt, Fixture) {
  settings.lengths = {131072};
  settings.tokens = 256;
  settings.repetitions = 3;
  server.script = [](const Json& body, int64_t prompt) {
    Script one;
    one.round_us = prompt > 100'000 ? 10'526 : 10'000;
    const Json* on = body.find("ignore_eos");
    if (prompt > 100'000) BOOST_TEST((on != nullptr && on->as_bool()));
    return one;
  };
  const Report report = need(run_depth(target, settings));
  CHECK_FIGURE(report, "cells.0.decode_tps.median", 100);
  CHECK_FIGURE(report, "cells.1.decode_tps.median", 95);
  CHECK_FIGURE(report, "cells.1.of_short", 0.95);
}

BOOST_FIXTURE_TEST_CASE(needles_are_found_where_they_stand, Fixture) {
  settings.lengths = {8192};
  std::vector<double> places;
  server.script = [&](const Json& body, int64_t) {
    Script one;
    const std::string text = content_of(body);
    const size_t key = text.find("The secret phrase is ");
    if (key == std::string::npos) return one;
    places.push_back(static_cast<double>(key) / static_cast<double>(text.size()));
    const size_t phrase = key + 21;
    if (places.back() < 0.7)
      one.text = "It is " + text.substr(phrase, text.find('.', phrase) - phrase);
    return one;
  };
  const Report report = need(run_needle(target, settings));
  BOOST_REQUIRE(places.size() == 3);
  constexpr double kDepths[] = {0.1, 0.5, 0.9};
  for (size_t i = 0; i < 3; ++i) BOOST_CHECK_SMALL(places[i] - kDepths[i], 0.02);
  BOOST_TEST(at(report.json, "found") == 2);
  BOOST_REQUIRE(report.failures.size() == 1);
  BOOST_TEST(report.failures[0] == "found 2 of 3");
}

BOOST_FIXTURE_TEST_CASE(first_long_beside_the_third, Fixture) {
  settings.lengths = {32768};
  int call = 0;
  server.script = [&](const Json&, int64_t prompt) {
    Script one;
    one.prefill_tps = prompt > 10'000 && call++ == 0 ? 2000 : 2500;
    return one;
  };
  const Report report = need(run_first_long(target, settings));
  CHECK_FIGURE(report, "first_of_third", 0.8);
}

BOOST_FIXTURE_TEST_CASE(ready_counts_from_the_start_of_the_process, Fixture) {
  server.status = [](int64_t now) { return now < 12'000'000 ? 503 : 200; };
  server.script = [](const Json&, int64_t) {
    Script one;
    one.wait_us = 250'000;
    return one;
  };
  settings.started_us = -3'000'000;
  target.model.clear();
  const Report report = need(run_ready(target, settings));
  CHECK_FIGURE(report, "ready_s", 15.25);
  CHECK_FIGURE(report, "models_s", 15);
  BOOST_TEST(at(report.json, "attempts") == 25);

  settings.wait_s = 60;
  server.status = [](int64_t) { return 503; };
  const auto never = run_ready(target, settings);
  BOOST_REQUIRE(!never.ok());
  BOOST_TEST(never.status().message().find("not ready within 60 s: GET /v1/models was answered 503:"
                                           " not now") == 0);
  server.status = [](int64_t) { return 401; };
  const int64_t before = script_now_us;
  BOOST_TEST(run_ready(target, settings).status().reason() == "http_401");
  BOOST_TEST(script_now_us == before);  // a key does not become right by waiting
}

BOOST_AUTO_TEST_CASE(streams_of_every_shape_cut_anywhere) {
  for (const char* name : {"usage_event.sse", "usage_inside.sse", "completions.sse"}) {
    const std::string bytes = file_text(name);
    const bool inside = std::string(name) == "usage_inside.sse";
    const auto last_text = bytes.find("cke\"");
    for (size_t cut = 0; cut <= bytes.size(); ++cut) {
      const auto sample = read_pieces(bytes, cut);
      BOOST_REQUIRE_MESSAGE(sample.ok(),
                            name << " cut at " << cut << ": " << sample.status().message());
      BOOST_REQUIRE(sample->text ==
                    "Stra\xc3\x9f"
                    "e und Br\xc3\xbc"
                    "cke");
      BOOST_REQUIRE(sample->reasoning == (inside ? "Hm." : ""));
      BOOST_REQUIRE(sample->text_us.size() == (inside ? 3u : 2u));
      if (cut < last_text) BOOST_REQUIRE(sample->text_us.back() == 2'000'000);
      BOOST_REQUIRE(sample->prompt_tokens == 17 && sample->completion_tokens == 9);
      BOOST_REQUIRE(sample->token_sha == (inside ? "0123456789ab" : ""));
    }
    BOOST_TEST(read_pieces(bytes, 0)->cached_tokens.value_or(-1) ==
               (inside                                   ? 5
                : std::string(name) == "usage_event.sse" ? 0
                                                         : -1));
  }
}

BOOST_AUTO_TEST_CASE(damaged_streams_say_what_came) {
  const std::string good = sse(R"({"choices":[{"delta":{"content":"a"}}]})");
  const std::string usage =
      sse(R"({"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}})");
  const struct {
    std::string stream, message;
  } cases[] = {
      {good + sse("{\"choices\":[{") + sse("[DONE]"), "event 2 of the stream is not JSON: {\"ch"},
      {good + sse("7"), "event 2 of the stream is not an object: 7"},
      {good + sse("{}"), "event 2 of the stream has no choices: {}"},
      {sse(R"({"choices":[{"delta":{"content":7}}]})"), "has a content of no text"},
      {sse(R"({"choices":[],"usage":{"prompt_tokens":1}})"), "has a usage without"},
      {good + usage, "the stream ended without [DONE], after 2 events"},
      {good + sse("[DONE]"), "the server sent no usage in 2 events"},
      {usage + sse("[DONE]"), "neither text nor a finish reason in 2 events"},
      {usage + sse("[DONE]") + good, "event 3 of the stream comes after [DONE]"},
      {good + sse(R"({"error":{"message":"out of luck"}})"),
       "the reply failed after 1 events with text: out of luck"},
  };
  for (const auto& one : cases) {
    const auto sample = read_pieces(one.stream, 10);
    BOOST_REQUIRE_MESSAGE(!sample.ok(), one.stream);
    BOOST_TEST(sample.status().message().find(one.message) != std::string::npos,
               sample.status().message() << " for " << one.stream);
  }
  EventStream events;
  const auto none = [](std::string_view) { return ok_status(); };
  BOOST_TEST(events.feed(std::string(kBenchEventBytesMax, 'x'), none).ok());
  BOOST_TEST(!events.feed("x", none).ok());
}

BOOST_AUTO_TEST_CASE(medians_and_percentiles) {
  const double nan = std::nan("");
  BOOST_TEST(median({3, 1, 2}) == 2);
  BOOST_TEST(median({4, 1, nan, 2, 3}) == 2.5);
  BOOST_TEST(std::isnan(median({nan})));
  std::vector<double> hundred;
  for (int i = 100; i >= 1; --i) hundred.push_back(i);
  BOOST_TEST(percentile(hundred, 0.5) == 50);
  BOOST_TEST(percentile(hundred, 0.99) == 99);
  BOOST_TEST(percentile({7}, 0.99) == 7);
  BOOST_TEST(percentile({1, 2}, 0.99) == 2);
}
