// tfctl doctor against recorded machines: a good one, and one fault at a time from
// tests/data/preflight/cases.json. A case names every check that answers otherwise than on the good
// machine, so a fault that is missed, or reported by the wrong check, fails here.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "ctl/verb.h"
#include "daemon/preflight/check.h"
#include "daemon/preflight/startup.h"
#include "daemon/preflight/text.h"
#include "engine/base/json.h"

namespace tensorfold {
namespace {

namespace fs = std::filesystem;
using preflight::Finding;
using preflight::Verdict;

const std::string kData = std::string(TF_TEST_DATA) + "/preflight";

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  BOOST_REQUIRE_MESSAGE(in, path + " cannot be read");
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

Json read_json(const std::string& path) {
  auto json = parse_json(read_file(path));
  BOOST_REQUIRE_MESSAGE(json.ok(), path + ": " + json.status().message());
  return std::move(json).value();
}

struct Run {
  int code = 0;
  std::string out, err;
};

Run tfctl(const std::vector<std::string>& args) {
  std::istringstream in;
  std::ostringstream out, err;
  Run run;
  run.code = ctl::run_tfctl(args, in, out, err);
  run.out = out.str();
  run.err = err.str();
  return run;
}

// A copy of the good machine in a folder of its own.
class Copy {
 public:
  Copy() {
    char name[] = "/tmp/tf-doctor-XXXXXX";
    BOOST_REQUIRE(mkdtemp(name) != nullptr);
    folder_ = name;
    fs::copy(kData + "/good", folder_, fs::copy_options::recursive);
  }
  ~Copy() {
    std::error_code error;
    fs::remove_all(folder_, error);
  }
  Copy(const Copy&) = delete;
  Copy& operator=(const Copy&) = delete;

  void write(const std::string& path, const std::string& text) const {
    const fs::path target = folder_ + path;
    fs::create_directories(target.parent_path());
    std::ofstream(target, std::ios::binary) << text;
  }
  void apply(const Json& change) const {
    for (const auto& [path, text] : change.find("files")->as_object()) {
      if (text.is_null()) {
        BOOST_REQUIRE_MESSAGE(fs::remove(folder_ + path), path + " is not there to be removed");
      } else {
        write(path, text.as_string());
      }
    }
    for (const auto& [path, target] : change.find("links")->as_object()) {
      fs::create_directories(fs::path(folder_ + path).parent_path());
      fs::create_symlink(target.as_string(), folder_ + path);
    }
    Json facts = read_json(folder_ + "/facts.json");
    for (const auto& [name, value] : change.find("facts")->as_object()) facts.set(name, value);
    std::string text = dump_json_compact(facts);
    for (size_t at; (at = text.find("\\\"VERSION\\\"")) != std::string::npos;)
      text.replace(at, 11, "\\\"" TF_VERSION "\\\"");
    write("/facts.json", text);
  }
  const std::string& folder() const { return folder_; }

 private:
  std::string folder_;
};

using Findings = std::map<std::string, std::pair<std::string, std::string>>;  // verdict, read

// Runs the verb and takes its JSON apart; the exit status must fit the verdicts.
Findings doctor(const std::string& folder, const std::vector<std::string>& more = {}) {
  std::vector<std::string> args = {"doctor", "--json", "--root", folder};
  args.insert(args.end(), more.begin(), more.end());
  const Run run = tfctl(args);
  BOOST_REQUIRE_MESSAGE(run.err.empty(), run.err);
  const auto json = parse_json(run.out);
  BOOST_REQUIRE_MESSAGE(json.ok(), run.out);
  BOOST_TEST(json->find("schema_version")->as_int64().value() == 1);
  Findings out;
  bool failed = false;
  for (const Json& check : json->find("checks")->as_array()) {
    const std::string verdict = check.find("verdict")->as_string();
    out[check.find("name")->as_string()] = {verdict, check.find("read")->as_string()};
    failed = failed || verdict == "fail";
    BOOST_TEST(!check.find("why")->as_string().empty());
    const bool advice = verdict == "fail" || verdict == "warn";
    BOOST_TEST(advice != check.find("action")->as_string().empty(),
               check.find("name")->as_string());
  }
  BOOST_TEST(run.code == (failed ? ctl::kExitFailed : ctl::kExitOk));
  BOOST_TEST(json->find("ok")->as_bool() == !failed);
  return out;
}

BOOST_AUTO_TEST_CASE(a_good_machine_passes_every_check) {
  const Findings good = doctor(kData + "/good");
  BOOST_TEST(good.size() == preflight::check_table().size());
  // Not on a machine that was not asked for a peer, whose service does not run, whose shards are
  // small.
  const std::set<std::string> silent = {
      "peer-ssh",      "peer-version", "peer-kernel", "peer-driver",  "peer-nccl",
      "peer-firmware", "peer-mtu",     "peer-clock",  "peer-weights", "peer-transfer",
      "peer-link",     "oom-score",    "disk-rate",   "nccl-library", "engram-files"};
  for (const auto& [name, finding] : good) {
    BOOST_TEST(finding.first == (silent.count(name) != 0 ? "not applicable" : "ok"),
               name + ": " + finding.first + ": " + finding.second);
  }
}

BOOST_AUTO_TEST_CASE(each_fault_is_found_by_its_check_and_by_no_other) {
  const Findings good = doctor(kData + "/good");
  const Json cases = read_json(kData + "/cases.json");
  size_t run = 0;
  for (const Json& one : cases.find("cases")->as_array()) {
    BOOST_TEST_CONTEXT(one.find("name")->as_string()) {
      Copy machine;
      machine.apply(one);
      std::vector<std::string> args;
      if (const Json* peer = one.find("settings")->find("peer")) {
        args = {"--peer", peer->as_string()};
      }
      const Json* expect = one.find("expect");
      for (const auto& [name, finding] : doctor(machine.folder(), args)) {
        const Json* wanted = expect->find(name);
        const std::string& verdict =
            wanted != nullptr ? wanted->as_array()[0].as_string() : good.at(name).first;
        BOOST_TEST(finding.first == verdict, name + ": " + finding.first + ": " + finding.second);
        if (wanted == nullptr) continue;
        const std::string& text = wanted->as_array()[1].as_string();
        BOOST_TEST(preflight::contains(finding.second, text), name + ": " + finding.second);
      }
      for (const auto& [name, wanted] : expect->as_object())
        BOOST_TEST(good.count(name) == 1, name);
      ++run;
    }
  }
  BOOST_TEST(run >= 112);
}

BOOST_AUTO_TEST_CASE(disk_rate_is_judged_by_the_largest_shard) {
  Copy machine;
  const std::string shard = "/srv/model/model-00003-of-00003.safetensors";
  machine.write(shard, "x");
  fs::resize_file(machine.folder() + shard, static_cast<uintmax_t>(preflight::kReadSampleBytes));
  Json facts = read_json(machine.folder() + "/facts.json");
  for (const auto& [rate, verdict] :
       std::vector<std::pair<double, std::string>>{{20e6, "warn"}, {6.5e9, "ok"}}) {
    facts.set("read_bytes_per_second", Json::object({{shard, Json::real(rate)}}));
    machine.write("/facts.json", dump_json_compact(facts));
    BOOST_TEST(doctor(machine.folder()).at("disk-rate").first == verdict);
  }
}

BOOST_AUTO_TEST_CASE(a_machine_that_is_no_spark_with_the_embedded_model) {
  Copy machine;
  machine.write("/sys/class/dmi/id/product_name", "Some Server\n");
  fs::remove_all(machine.folder() + "/proc/driver");
  fs::remove_all(machine.folder() + "/sys/bus");
  fs::remove_all(machine.folder() + "/sys/class/infiniband");
  fs::remove_all(machine.folder() + "/etc/tensorfoldd");
  const Findings found = doctor(machine.folder());
  for (const auto& [name, finding] : found) {
    BOOST_TEST((finding.first == "ok" || finding.first == "not applicable"),
               name + ": " + finding.first + ": " + finding.second);
  }
  BOOST_TEST(found.at("memory").first == "ok");
  BOOST_TEST(found.at("driver").first == "not applicable");
  BOOST_TEST(found.at("disk-space").first == "not applicable");
}

BOOST_AUTO_TEST_CASE(the_table_shows_reasons_and_with_fix_hints_commands) {
  Copy machine;
  machine.write("/sys/class/net/enp1s0f0np0/mtu", "1500\n");
  machine.write("/proc/sys/kernel/osrelease", "7.0.0-1019-nvidia\n");
  const Run plain = tfctl({"doctor", "--root", machine.folder()});
  BOOST_TEST(plain.code == ctl::kExitFailed);
  BOOST_TEST(preflight::contains(plain.out, "kernel           FAIL"));
  BOOST_TEST(preflight::contains(plain.out, "mtu              warn"));
  BOOST_TEST(preflight::contains(plain.out, "1 failed, 1 warned, "));
  BOOST_TEST(!preflight::contains(plain.out, "$ "));
  const Run hints = tfctl({"doctor", "--fix-hints", "--root", machine.folder()});
  BOOST_TEST(preflight::contains(hints.out, "$ sudo ip link set dev enp1s0f0np0 mtu 9000"));
}

// Files that are no text and numbers beyond all sense: a verdict for every check, and valid JSON.
BOOST_AUTO_TEST_CASE(garbage_from_the_kernel_harms_nothing) {
  const std::string bytes("\xff\xfe\x01 9223372036854775807 kB\0\x80", 28);
  for (const char* file :
       {"/proc/sys/kernel/osrelease", "/sys/class/net/enp1s0f0np0/mtu", "/proc/meminfo",
        "/proc/buddyinfo", "/proc/swaps", "/sys/kernel/mm/transparent_hugepage/enabled"}) {
    Copy machine;
    machine.write(file, bytes);
    const Run run = tfctl({"doctor", "--json", "--root", machine.folder()});
    const auto json = parse_json(run.out);
    BOOST_REQUIRE_MESSAGE(json.ok(), std::string(file) + ": " + json.status().message());
    BOOST_TEST(json->find("checks")->as_array().size() > 30U);
  }
  Copy machine;
  machine.write("/proc/meminfo",
                "MemTotal: 9223372036854775807 kB\nMemAvailable: -5 kB\nSwapTotal: -5 kB\n"
                "SwapFree: 99999999999999999 kB\nCmaTotal: x kB\nCmaFree: 1\n");
  machine.write("/proc/buddyinfo",
                "Node 0, zone Normal 9223372036854775807 -1 9 9 9 9 9 9 9 9 9 9 9 "
                "9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9\n");
  const Run run = tfctl({"doctor", "--json", "--root", machine.folder()});
  BOOST_TEST(parse_json(run.out).ok());
  BOOST_TEST(!preflight::contains(run.out, "of -"));
}

BOOST_AUTO_TEST_CASE(this_machine_can_be_read) {
  const Run run = tfctl({"doctor", "--json"});
  BOOST_TEST((run.code == ctl::kExitOk || run.code == ctl::kExitFailed));
  const auto json = parse_json(run.out);
  BOOST_REQUIRE(json.ok());
  BOOST_TEST(!json->find("machine")->find("kernel")->as_string().empty());
  BOOST_TEST(json->find("machine")->find("unix_ms")->as_int64().value() > 1'700'000'000'000);
}

BOOST_AUTO_TEST_CASE(wrong_arguments_are_named) {
  BOOST_TEST(tfctl({"doctor", "--root", "/nonexistent"}).code == ctl::kExitFailed);
  BOOST_TEST(tfctl({"doctor", "--peer", "-oProxyCommand=x"}).code == ctl::kExitUsage);
  const auto broken = preflight::recorded_machine(kData);
  BOOST_TEST(!broken.ok());
  BOOST_TEST(preflight::contains(broken.status().message(), "facts.json"));
}

BOOST_AUTO_TEST_CASE(an_instance_has_a_socket_of_its_own) {
  const Run run = tfctl({"--instance", "tf-test-none", "status"});
  BOOST_TEST(run.code == ctl::kExitNotRunning);
  BOOST_TEST(preflight::contains(run.err, "/run/tensorfoldd-tf-test-none/control.sock"));
  for (const char* name : {"", "a/b", "../x", "a b"}) {
    BOOST_TEST(tfctl({"--instance", name, "status"}).code == ctl::kExitUsage, name);
  }
}

BOOST_AUTO_TEST_CASE(check_names_are_unique_and_every_check_has_a_reason) {
  std::set<std::string_view> names;
  for (const preflight::Check& check : preflight::check_table()) {
    BOOST_TEST(names.insert(check.name).second, check.name);
    BOOST_TEST(check.name.size() < 17u);
    BOOST_TEST(!check.why.empty());
  }
}

// What a start makes of each recorded machine: it says what doctor says of the cheap checks, and
// refuses only some of what fails.
BOOST_AUTO_TEST_CASE(a_start_says_what_the_cheap_checks_find) {
  const auto names = preflight::startup_checks();
  std::set<std::string_view> known;
  for (const preflight::Check& check : preflight::check_table()) known.insert(check.name);
  for (const std::string_view name : names) BOOST_TEST(known.count(name) == 1U, name);
  const Json cases = read_json(kData + "/cases.json");
  size_t refused = 0, warned = 0;
  for (const Json& one : cases.find("cases")->as_array()) {
    if (one.find("settings")->find("peer") != nullptr) continue;  // nobody is asked at a start
    BOOST_TEST_CONTEXT(one.find("name")->as_string()) {
      Copy machine;
      machine.apply(one);
      const auto recorded = preflight::recorded_machine(machine.folder());
      BOOST_REQUIRE(recorded.ok());
      preflight::Settings settings;
      settings.model_path = "/srv/model";
      settings.role = "head";
      settings.device = "cuda";
      const preflight::StartupFindings found = preflight::check_startup(**recorded, settings);
      std::set<std::string> wanted;
      bool refuse = false;
      for (const auto& [name, expect] : one.find("expect")->as_object()) {
        const std::string& verdict = expect.as_array()[0].as_string();
        if (std::find(names.begin(), names.end(), name) == names.end()) continue;
        if (verdict == "warn" || verdict == "fail") wanted.insert(name);
        const std::set<std::string> grave = {"kernel",      "cma",    "memory",
                                             "rdma-memory", "driver", "gpu-nodes"};
        refuse = refuse || (verdict == "fail" && grave.count(name) == 1);
      }
      BOOST_TEST(found.refusal.ok() != refuse, found.refusal.message());
      const size_t told = found.warnings.size() + (found.refusal.ok() ? 0 : 1);
      // A head without a cable is told about its link, too.
      BOOST_TEST(told >= wanted.size());
      for (const std::string& line : found.warnings)
        BOOST_TEST(preflight::starts_with(line, "preflight "), line);
      refused += refuse ? 1 : 0;
      warned += found.warnings.empty() ? 0 : 1;
      // On a CPU, or by itself, nothing of this ends a start.
      settings.role = "single";
      settings.device = "cpu";
      BOOST_TEST(preflight::check_startup(**recorded, settings).refusal.ok());
    }
  }
  BOOST_TEST(refused >= 8);
  BOOST_TEST(warned >= 15);
  const auto good = preflight::recorded_machine(kData + "/good");
  preflight::Settings settings;
  settings.model_path = "/srv/model";
  const auto found = preflight::check_startup(**good, settings);
  BOOST_TEST(found.refusal.ok());
  BOOST_TEST(found.warnings.empty());
}

BOOST_AUTO_TEST_CASE(a_refusal_says_whether_it_may_pass) {
  preflight::Settings settings;
  settings.model_path = "/srv/model";
  settings.role = "worker";
  Copy kho;
  kho.write("/proc/sys/kernel/osrelease", "7.0.0-1019-nvidia\n");
  const auto broken =
      preflight::check_startup(**preflight::recorded_machine(kho.folder()), settings);
  BOOST_TEST((broken.refusal.code() == StatusCode::kInvalidArgument));
  BOOST_TEST(preflight::contains(broken.refusal.message(), "kho=off"));
  Copy full;
  full.write("/proc/meminfo", "MemTotal: 127000000 kB\nMemAvailable: 20000000 kB\n");
  const auto busy =
      preflight::check_startup(**preflight::recorded_machine(full.folder()), settings);
  BOOST_TEST((busy.refusal.code() == StatusCode::kUnavailable));
}

// A boot that brings the GPU's node late: the start waits, up to a bound, and for nothing else.
BOOST_AUTO_TEST_CASE(a_start_waits_for_the_gpu_but_not_for_ever) {
  preflight::Settings settings;
  settings.model_path = "/srv/model";
  Copy machine;
  const auto recorded = preflight::recorded_machine(machine.folder());
  const std::string node = machine.folder() + "/dev/nvidia-uvm";
  BOOST_REQUIRE(fs::remove(node));
  int looks = 0;
  const auto came = preflight::await_startup(**recorded, settings, [&](const std::string& what) {
    BOOST_TEST(preflight::contains(what, "nvidia-uvm"));
    if (++looks == 40) machine.write("/dev/nvidia-uvm", "");
    return true;
  });
  BOOST_TEST(looks == 40);
  BOOST_TEST(came.refusal.ok(), came.refusal.message());
  BOOST_REQUIRE(fs::remove(node));
  looks = 0;
  const auto never = preflight::await_startup(**recorded, settings, [&](const std::string&) {
    ++looks;
    return true;
  });
  BOOST_TEST(looks == preflight::kDeviceWaitMs / preflight::kDeviceLookMs);
  BOOST_TEST((never.refusal.code() == StatusCode::kUnavailable));
  const auto ended =
      preflight::await_startup(**recorded, settings, [](const std::string&) { return false; });
  BOOST_TEST(!ended.refusal.ok());
  // With a model in a folder a Spark never computes on its CPU unless it is told to.
  settings.device = "cpu";
  BOOST_TEST(preflight::check_startup(**recorded, settings).refusal.ok());
  settings.device = "auto";
  settings.model_path.clear();
  BOOST_TEST(preflight::check_startup(**recorded, settings).refusal.ok());
  machine.write("/dev/nvidia-uvm", "");
  machine.write("/proc/meminfo", "MemTotal: 127000000 kB\nMemAvailable: 20000000 kB\n");
  settings.model_path = "/srv/model";
  const auto full = preflight::await_startup(**recorded, settings, [](const std::string&) {
    BOOST_ERROR("waits for memory");
    return false;
  });
  BOOST_TEST(!full.refusal.ok());
}

BOOST_AUTO_TEST_CASE(programs_are_run_without_a_shell_and_in_bounded_time) {
  const auto machine = preflight::live_machine();
  const auto echoed = machine->command({"printf", "%s", "a b; $HOME"});
  BOOST_REQUIRE(echoed.has_value());
  BOOST_TEST(echoed->output == "a b; $HOME");
  BOOST_TEST(echoed->exit_code == 0);
  BOOST_TEST(!machine->command({"tensorfoldd-no-such-program"}).has_value());
  const auto failed = machine->command({"false"});
  BOOST_REQUIRE(failed.has_value());
  BOOST_TEST(failed->exit_code == 1);
}

}  // namespace
}  // namespace tensorfold
