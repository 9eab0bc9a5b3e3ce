// Batches of reads: what they bring, and a disk that does not answer. For such a disk a file's
// descriptor is put over the reading end of a pipe into which nobody writes: a read of it waits.
#include "engine/weights/batch_reader.h"

#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <fstream>
#include <random>
#include <vector>

#include "tests/temp_folder.h"

using namespace tensorfold;

namespace {

constexpr int64_t kDeadlineMs = 60;

std::shared_ptr<const ReadFile> file_of(const TempFolder& folder, const std::string& name,
                                        size_t bytes) {
  std::ofstream out(folder.path(name), std::ios::binary);
  for (size_t i = 0; i < bytes; ++i) out.put(static_cast<char>(i * 31 + i / 256));
  out.close();
  auto file = ReadFile::open(folder.path(name));
  BOOST_REQUIRE(file.ok());
  return *file;
}

std::byte byte_at(int64_t i) { return static_cast<std::byte>(i * 31 + i / 256); }

// A file that does not answer until `answer` is called.
struct Silent {
  Silent(const TempFolder& folder, const std::string& name) : file(file_of(folder, name, 64)) {
    int ends[2];
    BOOST_REQUIRE(::pipe(ends) == 0);
    BOOST_REQUIRE(::dup2(ends[0], file->fd()) >= 0);
    ::close(ends[0]);
    writer = ends[1];
  }
  ~Silent() { ::close(writer); }
  void answer(size_t bytes) const {
    const std::vector<char> text(bytes, 'x');
    BOOST_REQUIRE(::write(writer, text.data(), bytes) == static_cast<ssize_t>(bytes));
  }
  std::shared_ptr<const ReadFile> file;
  int writer = -1;
};

}  // namespace

BOOST_AUTO_TEST_CASE(a_batch_brings_what_single_reads_bring) {
  const TempFolder folder;
  const auto file = file_of(folder, "a", 70'000);
  std::mt19937 random(5);
  for (const bool ring : {true, false}) {
    BatchReader reader(ring);
    for (const size_t count : {1, 3, kReadsInFlightMax, 3 * kReadsInFlightMax + 7}) {
      std::vector<std::vector<std::byte>> out(count);
      std::vector<ReadRequest> requests;
      for (auto& o : out) {
        o.resize(random() % 300);
        requests.push_back({file.get(), static_cast<int64_t>(random() % 69'000), o});
      }
      BOOST_REQUIRE(reader.read(requests).ok());
      for (size_t r = 0; r < count; ++r)
        for (size_t i = 0; i < out[r].size(); ++i)
          if (out[r][i] != byte_at(requests[r].offset + static_cast<int64_t>(i)))
            BOOST_FAIL("a wrong byte");
    }
    // Behind the end: named, and the reader goes on.
    std::vector<std::byte> out(10);
    const ReadRequest behind{file.get(), 69'995, out};
    BOOST_TEST(reader.read({&behind, 1}).message().find("truncated") != std::string::npos);
    const ReadRequest inside{file.get(), 5, out};
    BOOST_TEST(reader.read({&inside, 1}).ok());
  }
}

BOOST_AUTO_TEST_CASE(a_disk_that_does_not_answer_fails_the_read_and_nothing_else) {
  BatchReader reader(true, kDeadlineMs);
  if (!reader.has_ring()) {
    BOOST_TEST_MESSAGE("no io_uring here: reads have no deadline");
    return;
  }
  const TempFolder folder;
  const auto good = file_of(folder, "good", 4096);
  const Silent silent(folder, "silent");
  std::vector<std::byte> near(100), far(16, std::byte{7});
  const ReadRequest both[] = {{good.get(), 3, near}, {silent.file.get(), 0, far}};
  const Status late = reader.read(both);
  BOOST_TEST(late.reason() == "slow_disk");
  BOOST_TEST(
      late.message().find("silent: a read at byte 0 did not end in 60 ms") != std::string::npos,
      late.message());
  BOOST_TEST((near[0] == byte_at(3)));
  // The other file is read at once, and what comes late is written nowhere.
  BOOST_TEST(reader.read({both, 1}).ok());
  silent.answer(16);
  ::usleep(50'000);
  BOOST_TEST(reader.read({both, 1}).ok());
  for (const std::byte b : far) BOOST_REQUIRE((b == std::byte{7}));
}

BOOST_AUTO_TEST_CASE(too_many_late_reads_refuse_more_until_they_have_ended) {
  BatchReader reader(true, kDeadlineMs);
  if (!reader.has_ring()) return;
  const TempFolder folder;
  const auto good = file_of(folder, "good", 4096);
  const Silent silent(folder, "silent");
  std::vector<std::byte> out(16);
  const ReadRequest bad{silent.file.get(), 0, out}, fine{good.get(), 0, out};
  for (size_t i = 0; i < kLateRingsMax; ++i)
    BOOST_TEST(reader.read({&bad, 1}).message().find("did not end") != std::string::npos);
  const Status refused = reader.read({&fine, 1});
  BOOST_TEST(refused.reason() == "slow_disk");
  BOOST_TEST(refused.message().find("still does not answer") != std::string::npos);
  silent.answer(16 * kLateRingsMax);
  Status again = refused;
  for (int i = 0; i < 200 && !again.ok(); ++i) {
    ::usleep(10'000);
    again = reader.read({&fine, 1});
  }
  BOOST_TEST(again.ok(), again.message());
}
