// link_bench: an exchange of two ranks over the loopback network, beside what the same
// bytes cost over plain blocking sockets in the same run: a ping-pong (there, then back) and a swap
// (both at once). Both ranks are threads of this process. "cpu" is processor time of both together,
// which other work on the machine changes less than the time that passes.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <thread>
#include <vector>

#include "engine/cluster/fd.h"
#include "engine/cluster/group.h"
#include "engine/cluster/link_address.h"
#include "engine/cluster/transport.h"

namespace tensorfold {
namespace {

double now_us() { return static_cast<double>(system_clock().monotonic_us()); }

void must(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "link_bench: %s\n", what);
  std::exit(1);
}

bool all_of(int fd, std::byte* data, size_t bytes, bool sending) {
  while (bytes > 0) {
    const ssize_t n = sending ? ::send(fd, data, bytes, MSG_NOSIGNAL) : ::recv(fd, data, bytes, 0);
    if (n <= 0) return false;
    data += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

struct Sockets {
  Fd a, b;
};

Sockets blocking_pair() {
  int port = 0;
  const auto address = LinkAddress::parse("bench", "127.0.0.1", 0);
  auto listener = listen_on(*address, &port);
  must(listener.ok(), "can't listen on 127.0.0.1");
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  Sockets out;
  out.a = Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  must(::connect(out.a.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0, "connect");
  out.b = Fd(::accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC));
  must(out.b.open(), "accept");
  const int one = 1;
  for (const int fd : {out.a.get(), out.b.get()})
    (void)::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return out;
}

struct Cost {
  double us = 0, cpu_us = 0;  // of one round; cpu: of both sides
};

double process_cpu_us() {
  timespec t{};
  (void)::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) / 1e3;
}

// The median of `blocks` times of `rounds` rounds; both sides run `round`.
Cost measure(int blocks, int rounds, const std::function<bool(int)>& round) {
  std::vector<double> times;
  const double cpu_start = process_cpu_us();
  std::thread other([&] {
    for (int i = 0; i < blocks * rounds; ++i) must(round(1), "a round failed on side 1");
  });
  for (int b = 0; b < blocks; ++b) {
    const double start = now_us();
    for (int i = 0; i < rounds; ++i) must(round(0), "a round failed on side 0");
    times.push_back((now_us() - start) / rounds);
  }
  other.join();
  std::sort(times.begin(), times.end());
  const double cpu = (process_cpu_us() - cpu_start) / (blocks * rounds);
  return {times[times.size() / 2], cpu};
}

std::vector<std::unique_ptr<Group>> form(Transport& transport, const StopFlag& stop,
                                         std::vector<std::unique_ptr<GroupFormer>>& formers) {
  std::vector<std::unique_ptr<Group>> groups(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    GroupOptions o;
    o.rank = r;
    o.link_address = o.head_address = "127.0.0.1";
    o.link_port = 0;
    o.head_port = r == 0 ? 0 : formers[0]->port();
    o.key = std::string(32, 'k');
    auto made = GroupFormer::create(o, transport, null_log());
    must(made.ok(), "no former");
    formers.push_back(std::move(*made));
  }
  for (size_t r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      auto group = formers[r]->form(stop, [](const FormProgress&) {});
      must(group.ok(), "no group");
      groups[r] = std::move(*group);
    });
  }
  for (auto& t : threads) t.join();
  return groups;
}

int run() {
  const StopFlag stop;
  const auto transport = make_socket_transport();
  std::vector<std::unique_ptr<GroupFormer>> formers;
  const auto groups = form(*transport, stop, formers);
  const Sockets plain = blocking_pair();
  std::printf("%10s %14s %14s %14s %8s\n", "bytes", "ping-pong us", "swap us (cpu)",
              "exchange (cpu)", "ratio");
  for (const size_t bytes : {size_t{16}, size_t{16'384}, size_t{65'536}, size_t{1} << 20}) {
    const int rounds = bytes > 100'000 ? 50 : 500;
    std::vector<std::vector<std::byte>> buffers(2, std::vector<std::byte>(bytes));
    std::vector<std::vector<std::byte>> outs(2, std::vector<std::byte>(2 * bytes));
    const auto fd = [&](int side) { return side == 0 ? plain.a.get() : plain.b.get(); };
    const auto at = [&](int side) { return buffers[static_cast<size_t>(side)].data(); };
    const Cost ping = measure(9, rounds, [&](int side) {
      return all_of(fd(side), at(side), bytes, side == 0) &&
             all_of(fd(side), at(side), bytes, side != 0);
    });
    // Sends fit the sockets' buffers up to 64 KiB; above, a thread of its own would be needed.
    Cost swap;
    if (bytes <= 65'536) {
      swap = measure(9, rounds, [&](int side) {
        return all_of(fd(side), at(side), bytes, true) && all_of(fd(side), at(side), bytes, false);
      });
    }
    const Cost exchange = measure(9, rounds, [&](int side) {
      const auto s = static_cast<size_t>(side);
      return groups[s]->collective().all_gather(buffers[s], outs[s]).ok();
    });
    std::printf("%10zu %14.1f %8.1f (%3.0f) %8.1f (%3.0f) %8.2f\n", bytes, ping.us, swap.us,
                swap.cpu_us, exchange.us, exchange.cpu_us,
                swap.us > 0 ? exchange.us / swap.us : exchange.us / ping.us);
  }
  std::printf("(ratio of the last row: to the ping-pong)\n");
  return 0;
}

}  // namespace
}  // namespace tensorfold

int main() { return tensorfold::run(); }
