// The pure parts of model downloads: progress, retries, headers, paths, records, shell words.
#include <boost/test/unit_test.hpp>
#include <fstream>
#include <random>
#include <sstream>

#include "ctl/model/file_hash.h"
#include "ctl/model/http_transfer.h"
#include "ctl/model/path_rules.h"
#include "ctl/model/progress.h"
#include "ctl/model/record.h"
#include "ctl/model/retry.h"
#include "ctl/remote/ssh.h"
#include "engine/base/program.h"
#include "tests/temp_folder.h"

namespace tensorfold::models {
namespace {

BOOST_AUTO_TEST_CASE(sizes_and_durations) {
  for (const auto& [bytes, text] :
       std::vector<std::pair<int64_t, std::string>>{{0, "0 B"},
                                                    {999, "999 B"},
                                                    {1000, "1.0 kB"},
                                                    {999'949, "999.9 kB"},
                                                    {999'999, "1.0 MB"},
                                                    {197'300'000'000, "197.3 GB"},
                                                    {1'500'000'000'000'000, "1500.0 TB"}}) {
    BOOST_TEST(size_text(bytes) == text);
  }
  BOOST_TEST(duration_text(119) == "119 s");
  BOOST_TEST(duration_text(120) == "2 min");
  BOOST_TEST(duration_text(12'000) == "3 h 20 min");
  int64_t bytes = 0;
  for (const auto& [text, value] : std::vector<std::pair<std::string, int64_t>>{
           {"1", 1}, {"20M", 20'000'000}, {"1.5G", 1'500'000'000}, {"300k", 300'000}}) {
    BOOST_TEST(parse_size(text, bytes));
    BOOST_TEST(bytes == value);
  }
  for (const char* bad : {"", "0", "-1", "k", "1T", "1e9", "nan", "inf", "1 M", "M1", "0.1",
                          "99999999999999999G", "1..5"}) {
    BOOST_TEST(!parse_size(bad, bytes), bad);
  }
}

BOOST_AUTO_TEST_CASE(the_rate_is_that_of_the_last_seconds) {
  RateMeter meter;
  BOOST_TEST(meter.bytes_per_second() == 0);
  BOOST_TEST(meter.seconds_left(100) == -1);
  for (int s = 0; s <= 20; ++s) meter.add(s * 1000, int64_t{s} * 1'000'000);
  BOOST_TEST(meter.bytes_per_second() == 1e6, boost::test_tools::tolerance(1e-9));
  BOOST_TEST(meter.seconds_left(5'000'000) == 6);
  for (int s = 21; s <= 40; ++s) meter.add(s * 1000, 20'000'000);  // it stands still
  BOOST_TEST(meter.bytes_per_second() == 0);
  BOOST_TEST(meter.seconds_left(1) == -1);
  meter.add(41'000, 5);  // it began anew
  BOOST_TEST(meter.bytes_per_second() == 0);
}

BOOST_AUTO_TEST_CASE(lines_come_now_and_then) {
  ManualClock clock;
  std::ostringstream plain, drawn;
  Progress lines(plain, clock, false, "fetching"), place(drawn, clock, true, "fetching");
  lines.start(1'000'000, 0, 2);
  place.start(1'000'000, 0, 2);
  for (int i = 1; i <= 250; ++i) {  // 25 s
    clock.advance_us(100'000);
    lines.look(i * 1000, 0);
    place.look(i * 1000, 0);
  }
  BOOST_TEST(plain.str() ==
             "fetching: 100.0 kB of 1.0 MB (10%), 0 of 2 files, 10.0 kB/s, 91 s left\n"
             "fetching: 200.0 kB of 1.0 MB (20%), 0 of 2 files, 10.0 kB/s, 81 s left\n");
  const std::string shown = drawn.str();
  BOOST_TEST(std::count(shown.begin(), shown.end(), '\r') == 125);
  BOOST_TEST(shown.find('\n') == shown.npos);
  place.note("a word");
  place.end();
  BOOST_TEST(drawn.str().ends_with("\n"));
}

BOOST_AUTO_TEST_CASE(what_is_tried_again_and_when) {
  for (const long status : {408L, 416L, 425L, 429L, 500L, 502L, 503L, 504L}) {
    BOOST_TEST(http_fault(status, "").again, status);
  }
  for (const long status : {400L, 401L, 403L, 404L, 410L, 301L}) {
    BOOST_TEST(!http_fault(status, "").again, status);
    BOOST_TEST(http_fault(status, "").all == (status == 401 || status == 403), status);
  }
  BOOST_TEST(http_fault(503, "{\"error\": \"a\\nb\"}").what == "HTTP status 503 (a b)");
  BOOST_TEST(curl_fault(CURLE_RECV_ERROR, "").again);
  BOOST_TEST(curl_fault(CURLE_PEER_FAILED_VERIFICATION, "").all);
  BOOST_TEST(backoff_ms(1) == 500);
  BOOST_TEST(backoff_ms(2) == 1000);
  BOOST_TEST(backoff_ms(1000) == kBackoffMostMs);
  BOOST_TEST(retry_after_ms("3", 0) == 3000);
  BOOST_TEST(retry_after_ms("Thu, 01 Jan 1970 00:01:00 GMT", 20'000) == 40'000);
  BOOST_TEST(retry_after_ms("Thu, 01 Jan 1970 00:01:00 GMT", 90'000) == 0);
  for (const char* bad : {"", "soon", "-1"}) BOOST_TEST(retry_after_ms(bad, 0) == -1, bad);
}

BOOST_AUTO_TEST_CASE(ranges_and_links) {
  const auto range = parse_content_range("Bytes 100-199/1000");
  BOOST_REQUIRE(range.has_value());
  BOOST_TEST(range->first == 100);
  BOOST_TEST(range->last == 199);
  BOOST_TEST(range->total == 1000);
  BOOST_TEST(parse_content_range("bytes 0-0/*")->total == -1);
  for (const char* bad : {"", "bytes", "bytes */1000", "bytes 5-4/9", "bytes a-b/c", "items 0-1/2",
                          "bytes 1-2", "bytes -1-2/3", "bytes 1-99999999999999999999/3"}) {
    BOOST_TEST(!parse_content_range(bad).has_value(), bad);
  }
  BOOST_TEST(next_link("<https://h/a?b=1>; rel=\"next\"") == "https://h/a?b=1");
  BOOST_TEST(next_link("<https://h/p>; rel=\"prev\", <https://h/n>; rel=\"next\"") ==
             "https://h/n");
  for (const char* none : {"", "<x", "x>", "<https://h/p>; rel=\"prev\"", "next"}) {
    BOOST_TEST(next_link(none).empty(), none);
  }
}

BOOST_AUTO_TEST_CASE(where_a_token_may_go) {
  HttpOptions options;
  for (const char* bad :
       {"", "ftp://h", "https://", "https://u:p@h", "https://h/?q", "https://h h"}) {
    options.base_url = bad;
    BOOST_TEST(!check_http_options(options).ok(), bad);
  }
  options.token = "t";
  for (const char* good : {"https://h", "https://h:8443/p", "http://127.0.0.1:1",
                           "http://localhost/x", "http://[::1]:9"}) {
    options.base_url = good;
    BOOST_TEST(check_http_options(options).ok(), good);
  }
  for (const char* bad : {"http://h", "http://127.0.0.1.example", "http://localhost.example:80"}) {
    options.base_url = bad;
    BOOST_TEST(!check_http_options(options).ok(), bad);
  }
}

BOOST_AUTO_TEST_CASE(remote_paths_stay_in_the_folder) {
  for (const char* good :
       {"a", "a/b.c", "model-00001-of-00002.safetensors", "a b/c", "\xc3\xbc", "..a"}) {
    BOOST_TEST(check_remote_path(good).ok(), good);
  }
  for (const char* bad :
       {"", "/", "/a", "a/", "a//b", ".", "..", "a/..", "../a", "a/./b", "a\\b", "a\nb"}) {
    BOOST_TEST(!check_remote_path(bad).ok(), bad);
  }
  BOOST_TEST(check_remote_path(std::string(kRemoteNameBytesMax, 'a')).ok());
  BOOST_TEST(!check_remote_path(std::string(kRemoteNameBytesMax + 1, 'a')).ok());
  std::string deep = "a";
  for (size_t i = 1; i < kRemotePathPartsMax; ++i) deep += "/a";
  BOOST_TEST(check_remote_path(deep).ok());
  BOOST_TEST(!check_remote_path(deep + "/a").ok());
  for (const char* bad : {"", "a/b/c", "../x", "a/", "/b", "a b/c", "./x"}) {
    BOOST_TEST(!check_repository(bad).ok(), bad);
  }
  BOOST_TEST(check_repository("LibertAIDAI/DeepSeek-V4.1").ok());
  BOOST_TEST(!check_revision("a..b").ok());
  BOOST_TEST(!check_revision("a?b").ok());
  BOOST_TEST(check_revision("refs/pr/1").ok());
  BOOST_TEST(url_encode("a b/\xc3\xbc?#%", true) == "a%20b/%C3%BC%3F%23%25");
  BOOST_TEST(url_encode("a/b", false) == "a%2Fb");
}

BOOST_AUTO_TEST_CASE(a_record_comes_back_as_it_was) {
  TempFolder folder;
  Record record;
  const int source = record.source_index({"o/n", std::string(40, 'a')});
  BOOST_TEST(record.source_index({"o/n", std::string(40, 'a')}) == source);
  for (const char* path : {"b/\"x\"", "a", "c"}) {
    record.put({path, 7, std::string(64, '0'), source, 1'790'000'000'123'456'789});
  }
  record.put({"a", 8, std::string(64, '1'), -1, 5});
  BOOST_TEST(save_record(folder.path(), record).ok());
  const auto loaded = load_record(folder.path());
  BOOST_REQUIRE_MESSAGE(loaded.ok(), loaded.status().message());
  BOOST_REQUIRE_EQUAL(loaded->files.size(), 3U);
  BOOST_TEST(loaded->files[0].path == "a");
  BOOST_TEST(loaded->files[0].bytes == 8);
  BOOST_TEST(loaded->files[1].path == "b/\"x\"");
  BOOST_TEST(loaded->files[1].mtime_ns == 1'790'000'000'123'456'789);
  BOOST_TEST(loaded->sources[0].repository == "o/n");
}

BOOST_AUTO_TEST_CASE(hashes_are_those_of_other_programs) {
  TempFolder folder;
  const std::string path = folder.path("x");
  std::ofstream(path, std::ios::binary) << "hello\n";
  const auto hashes = hash_file(path, nullptr, nullptr);
  BOOST_REQUIRE(hashes.ok());
  // sha256sum, and git hash-object.
  BOOST_TEST(hashes->sha256 == "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03");
  BOOST_TEST(hashes->git_sha1 == "ce013625030ba8dba906f756967f9e9ca394464a");
  std::vector<HashJob> jobs;
  for (int i = 0; i < 20; ++i) jobs.push_back({i == 7 ? folder.path("none") : path});
  hash_files(jobs, 8, 1, {});
  for (size_t i = 0; i < jobs.size(); ++i) BOOST_TEST(jobs[i].hashes.ok() == (i != 7));
}

// Against a real shell.
BOOST_AUTO_TEST_CASE(shell_words_are_what_they_were) {
  std::mt19937 random(5);
  const std::string odd = " '\"\\$`&|<>(){}[]*?#~;\n\tab!-=";
  for (int round = 0; round < 12; ++round) {
    std::string command = "printf '%s\\0'", wanted;
    for (int i = 0; i < 20; ++i) {
      std::string word;
      for (uint64_t n = random() % 10; n > 0; --n) word += odd[random() % odd.size()];
      command += " " + remote::shell_quote(word);
      wanted += word + '\0';
    }
    ProgramRun run;
    run.capture = true;
    const auto ended = run_program({"sh", "-c", command}, run);
    BOOST_REQUIRE(ended.ok());
    BOOST_TEST((ended->output == wanted));
  }
  for (const char* bad : {"", "-x", "a b", "a;b", "a$b", "u@-x", "a\nb"}) {
    BOOST_TEST(!remote::check_host(bad).ok(), bad);
  }
  for (const char* good : {"spark2", "u@spark2", "10.0.0.2", "u@[fe80::1%eth0]"}) {
    BOOST_TEST(remote::check_host(good).ok(), good);
  }
}

}  // namespace
}  // namespace tensorfold::models
