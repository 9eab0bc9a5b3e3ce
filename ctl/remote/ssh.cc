#include "ctl/remote/ssh.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace tensorfold::remote {

Status check_host(std::string_view host) {
  const auto good = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("._-@:[]%").find(c) != std::string_view::npos;
  };
  if (!host.empty() && host.size() <= kHostBytesMax && host.front() != '-' &&
      host.find("@-") == host.npos && std::all_of(host.begin(), host.end(), good)) {
    return ok_status();
  }
  return invalid_argument("a host is [USER@]NAME, not '" + std::string(host.substr(0, 80)) + "'");
}

std::string shell_quote(std::string_view word) {
  const auto plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("-_./:=@%+,").find(c) != std::string_view::npos;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), plain)) return std::string(word);
  std::string out = "'";
  for (const char c : word) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out + "'";
}

std::vector<std::string> ssh_command(const std::string& host, std::span<const std::string> argv,
                                     bool terminal) {
  std::vector<std::string> out = {"ssh", "-o", "BatchMode=yes", "-o",
                                  "ConnectTimeout=" + std::to_string(kSshConnectSeconds)};
  if (terminal) out.emplace_back("-t");
  out.emplace_back("--");
  out.push_back(host);
  std::string command;
  for (const std::string& word : argv) {
    if (!command.empty()) command += ' ';
    command += shell_quote(word);
  }
  out.push_back(std::move(command));
  return out;
}

std::string ssh_transport() {
  return "ssh -o BatchMode=yes -o ConnectTimeout=" + std::to_string(kSshConnectSeconds);
}

}  // namespace tensorfold::remote
