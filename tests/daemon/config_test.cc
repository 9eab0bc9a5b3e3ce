// Settings: the table, the shipped file, and exact places of errors.
#include <sys/stat.h>

#include <boost/test/unit_test.hpp>
#include <fstream>
#include <set>
#include <sstream>

#include "daemon/command_line.h"
#include "daemon/config/config.h"
#include "daemon/config/key_table.h"
#include "tests/temp_folder.h"

using namespace tensorfold;
using namespace tensorfold::config;

namespace {

std::string read_file(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

std::string error_of(const std::string& text) {
  const auto loaded = parse_config(text, "f.toml");
  return loaded.ok() ? "" : loaded.status().message();
}

}  // namespace

BOOST_AUTO_TEST_CASE(shipped_file_is_the_table) {
  const std::string file = read_file(TF_SOURCE_DIR "/etc/tensorfoldd.toml");
  BOOST_TEST(file == render_default_file());
  // Uncommented, every key parses to the default.
  std::string plain;
  std::istringstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    const bool setting = line.size() > 1 && line[0] == '#' && line[1] != ' ';
    plain += (setting ? line.substr(1) : line) + "\n";
  }
  const auto loaded = parse_config(plain, "f.toml");
  BOOST_REQUIRE_MESSAGE(loaded.ok(), loaded.status().message());
  const Config defaults = default_config();
  for (const Key& key : key_table()) {
    std::visit(
        [&](auto member) {
          BOOST_TEST((loaded->config.*member == defaults.*member), key.name << " differs");
        },
        key.target);
  }
}

BOOST_AUTO_TEST_CASE(every_member_has_one_key) {
  std::set<std::string_view> names;
  for (const Key& key : key_table()) BOOST_TEST(names.insert(key.name).second);
  BOOST_TEST(names.count("http.listen") == 1);
  const Config config = default_config();
  BOOST_TEST(config.http_listen == "127.0.0.1:8888");
  BOOST_TEST(config.engine_slots == 4);
  BOOST_TEST(config.engine_context == 1048576);
  BOOST_TEST(config.sampling_temperature == 1.0);
  BOOST_TEST(config.sampling_top_p == 0.95);
  BOOST_TEST(config.text_thinking == false);
  BOOST_TEST(config.cluster_link_port == 29620);
}

BOOST_AUTO_TEST_CASE(errors_name_file_line_and_column) {
  struct Case {
    const char* text;
    const char* message;
  };
  const Case cases[] = {
      {"[http]\nlisten = 5\n", "f.toml:2:10: http.listen must be a string, not an integer"},
      {"[http]\nlisen = \"x\"\n", "f.toml:2:1: unknown key http.lisen"},
      {"[htp]\n", "f.toml:1:2: unknown section htp"},
      {"slots = 4\n", "f.toml:1:1: unknown key slots"},
      {"engine = 4\n", "f.toml:1:10: engine must be a section, not an integer"},
      {"[engine]\nslots = 0\n", "f.toml:2:9: engine.slots must be 1..64, not 0"},
      {"[engine]\nslots = 65\n", "f.toml:2:9: engine.slots must be 1..64, not 65"},
      {"[engine]\nslots = 4.0\n",
       "f.toml:2:9: engine.slots must be an integer, not a number with a fraction"},
      {"[engine]\nslots = \"4\"\n", "f.toml:2:9: engine.slots must be an integer, not a string"},
      {"[engine]\n  device = \"gpu\"\n",
       "f.toml:2:12: engine.device must be one of auto|cpu|cuda|cuda:0|cuda:1|cuda:2|cuda:3, not "
       "\"gpu\""},
      {"[text]\nthinking = 1\n",
       "f.toml:2:12: text.thinking must be true or false, not an integer"},
      {"[sampling]\ntop_p = 1.5\n", "f.toml:2:9: sampling.top_p must be 0..1, not 1.5"},
      {"[sampling]\ntemperature = nan\n",
       "f.toml:2:15: sampling.temperature must be 0..2, not nan"},
      {"[http]\ncors = [\"a\", 3]\n", "f.toml:2:8: http.cors[1] must be a string, not an integer"},
      {"[http.listen]\nx = 1\n", "f.toml:1:1: http.listen must be a string, not a table"},
  };
  for (const Case& c : cases) BOOST_TEST(error_of(c.text) == c.message);
  // What the TOML parser says itself also has a place.
  BOOST_TEST(error_of("[http]\nlisten = \n").rfind("f.toml:2:", 0) == 0);
  BOOST_TEST(error_of("[http]\nlisten = \"a\"\nlisten = \"b\"\n").rfind("f.toml:3:", 0) == 0);
}

// What a file holds is not sent to the terminal or the journal whole, nor as it is.
BOOST_AUTO_TEST_CASE(complaints_are_short_and_printable) {
  const std::string text = std::string(5000, 'a') + "\u00e4";
  for (const std::string& file : std::vector<std::string>{
           "[engine]\ndevice = \"" + text + "\"\n", "[http]\n" + text.substr(0, 5000) + " = 1\n",
           "[engine]\ndevice = \"\\u001b[2J\\u0007\"\n",
           "[engine]\nslots = " + std::string(5000, '9') + "\n"}) {
    const auto parsed = parse_config(file, "t.toml");
    BOOST_REQUIRE(!parsed.ok());
    const std::string& message = parsed.status().message();
    BOOST_TEST(message.rfind("t.toml:2:", 0) == 0U, message);
    BOOST_TEST(message.size() < 300U);
    BOOST_TEST(message.find_first_of("\x1b\x07") == std::string::npos);
  }
  Config config;
  config.http_listen = text;
  BOOST_TEST(check_config(config).message().size() < 400U);
}

BOOST_AUTO_TEST_CASE(a_pipe_is_no_settings_file) {
  const TempFolder folder;
  const std::string pipe = folder.path("pipe");
  BOOST_REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  BOOST_TEST(load_config(pipe).status().message() == pipe + " is not a regular file");
  BOOST_TEST(load_config("/dev/null").ok());
  BOOST_TEST(!load_config(folder.path("none")).ok());
}

BOOST_AUTO_TEST_CASE(numbers_may_be_whole) {
  const auto loaded = parse_config("[sampling]\ntemperature = 1\n", "f.toml");
  BOOST_REQUIRE(loaded.ok());
  BOOST_TEST(loaded->config.sampling_temperature == 1.0);
}

BOOST_AUTO_TEST_CASE(keys_without_effect_are_said) {
  const auto loaded = parse_config("[engine]\nmemory_gib = 8\n", "f.toml");
  BOOST_REQUIRE(loaded.ok());
  BOOST_REQUIRE(loaded->warnings.size() == 1);
  BOOST_TEST(loaded->warnings[0] == "f.toml:2: engine.memory_gib has no effect in this version");
}

BOOST_AUTO_TEST_CASE(off_loopback_needs_keys) {
  Config config = default_config();
  BOOST_TEST(check_config(config).ok());
  for (const char* listen : {"0.0.0.0:8888", "[::]:8888", "192.168.1.2:1", "128.0.0.1:80"}) {
    config.http_listen = listen;
    BOOST_TEST(!check_config(config).ok());
    config.http_keys_file = "/etc/keys";
    BOOST_TEST(check_config(config).ok());
    config.http_keys_file = "";
  }
  for (const char* listen : {"127.0.0.1:0", "127.9.9.9:1", "[::1]:8888", "localhost:8888"}) {
    config.http_listen = listen;
    BOOST_TEST(check_config(config).ok());
  }
  config.http_listen = "8888";
  BOOST_TEST(!check_config(config).ok());
}

BOOST_AUTO_TEST_CASE(command_line) {
  const auto parse = [](std::vector<std::string> args) { return parse_command_line(args); };
  BOOST_TEST(parse({}).ok());
  auto line = parse({"--listen=127.0.0.1:1", "--model", "/m", "--check-config", "f.toml"});
  BOOST_REQUIRE(line.ok());
  BOOST_TEST(line->listen == "127.0.0.1:1");
  BOOST_TEST(line->model == "/m");
  BOOST_TEST(line->config_file == "f.toml");
  BOOST_TEST((line->action == CommandLine::Action::kCheckConfig));
  BOOST_TEST(parse({"--check-config"}).ok());
  for (const auto& bad : std::vector<std::vector<std::string>>{{"--model"},
                                                               {"--model="},
                                                               {"--nope"},
                                                               {"file"},
                                                               {"--version=1"},
                                                               {"--model", "--help"}}) {
    BOOST_TEST(!parse(bad).ok());
  }
  for (const CommandOption& option : command_options()) {
    BOOST_TEST(command_help().find(option.name) != std::string::npos);
  }
}

BOOST_AUTO_TEST_CASE(cluster_settings_that_do_not_fit_name_the_key) {
  const auto settings = [](const std::string& text) {
    const auto loaded = parse_config("[cluster]\n" + text, "f.toml");
    BOOST_REQUIRE_MESSAGE(loaded.ok(), loaded.status().message());
    return check_config(loaded->config);
  };
  const std::string link = "link_address = \"192.0.2.1\"\nkey_file = \"/k\"\n";
  BOOST_TEST(settings("role = \"head\"\nworld_size = 2\n" + link).ok());
  const std::string worker = "role = \"worker\"\nrank = 1\nhead = \"192.0.2.2\"\n" + link;
  BOOST_TEST(settings(worker + "world_size = 2\n").ok());
  const std::pair<std::string, std::string> wrong[] = {
      {"world_size = 2\n", "cluster.world_size"},
      {"role = \"head\"\n" + link, "cluster.world_size"},
      {"role = \"head\"\nrank = 1\nworld_size = 2\n" + link, "cluster.rank"},
      {worker + "world_size = 1\n", "cluster.world_size"},
      {"role = \"worker\"\nhead = \"192.0.2.2\"\nworld_size = 2\n" + link, "cluster.rank"},
      {"role = \"worker\"\nrank = 2\nhead = \"192.0.2.2\"\nworld_size = 2\n" + link,
       "cluster.rank"},
      {"role = \"head\"\nworld_size = 2\nkey_file = \"/k\"\n", "cluster.link_address"},
      {"role = \"head\"\nworld_size = 2\nlink_address = \"192.0.2.1\"\n", "cluster.key_file"},
      {"role = \"worker\"\nrank = 1\nworld_size = 2\n" + link, "cluster.head"},
  };
  for (const auto& [text, key] : wrong) BOOST_TEST(settings(text).param() == key, text);
}
