// See the header.
#include "engine/group/messages.h"

#include <xxhash.h>

#include <algorithm>

#include "engine/cluster/wire.h"

namespace tensorfold {
namespace {

constexpr size_t kKeyBytes = 33;

Status bad(const char* message, const char* field) {
  return data_loss(std::string("link message ") + message + ": " + field + " is wrong or missing");
}

bool read_flag(WireReader& in, bool& value) {
  uint8_t byte = 0;
  if (!in.u8(byte) || byte > 1) return false;
  value = byte == 1;
  return true;
}

void put_key(WireWriter& out, const RecordKey& key) {
  out.bytes(std::as_bytes(std::span(key.name.bytes)));
  out.u8(static_cast<uint8_t>(key.kind));
}

bool read_key(WireReader& in, RecordKey& key) {
  std::span<const std::byte> name;
  uint8_t kind = 0;
  if (!in.bytes(key.name.bytes.size(), name) || !in.u8(kind)) return false;
  if (kind > static_cast<uint8_t>(CacheNote::Kind::kEncoderSnapshot)) return false;
  std::transform(name.begin(), name.end(), key.name.bytes.begin(),
                 [](std::byte b) { return std::to_integer<uint8_t>(b); });
  key.kind = static_cast<CacheNote::Kind>(kind);
  return true;
}

void put_keys(WireWriter& out, const std::vector<RecordKey>& keys) {
  out.u32(static_cast<uint32_t>(keys.size()));
  for (const RecordKey& key : keys) put_key(out, key);
}

bool read_keys(WireReader& in, size_t most, std::vector<RecordKey>& keys) {
  uint32_t count = 0;
  if (!in.u32(count) || count > most) return false;
  keys.clear();
  for (uint32_t i = 0; i < count; ++i) {
    RecordKey key;
    if (!read_key(in, key)) return false;
    keys.push_back(key);
  }
  return true;
}

void put_answers(WireWriter& out, std::span<const News::Staged> answers) {
  out.u32(static_cast<uint32_t>(answers.size()));
  for (const News::Staged& s : answers) {
    put_key(out, s.key);
    out.u8(s.ready ? 1 : 0);
  }
}

bool read_answers(WireReader& in, size_t most, std::vector<News::Staged>& answers) {
  uint32_t count = 0;
  if (!in.u32(count) || count > most) return false;
  answers.clear();
  for (uint32_t i = 0; i < count; ++i) {
    News::Staged s;
    if (!read_key(in, s.key) || !read_flag(in, s.ready)) return false;
    answers.push_back(s);
  }
  return true;
}

}  // namespace

std::vector<std::byte> encode(const Hello& hello) {
  WireWriter out;
  out.u64(hello.self);
  out.u64(hello.head);
  out.u64(hello.applied);
  out.u8(hello.clean ? 1 : 0);
  return out.out();
}

Status decode(std::span<const std::byte> body, Hello& hello) {
  WireReader in(body);
  const bool read = in.u64(hello.self) && in.u64(hello.head) && in.u64(hello.applied) &&
                    read_flag(in, hello.clean);
  return read && in.done() ? ok_status() : bad("hello", "a field");
}

std::vector<std::byte> encode(const Sync& sync) {
  WireWriter out;
  out.u64(sync.self);
  out.u8(sync.keep ? 1 : 0);
  out.u64(sync.sequence);
  return out.out();
}

Status decode(std::span<const std::byte> body, Sync& sync) {
  WireReader in(body);
  const bool read = in.u64(sync.self) && read_flag(in, sync.keep) && in.u64(sync.sequence);
  return read && in.done() ? ok_status() : bad("sync", "a field");
}

std::vector<std::byte> encode(const StepOrder& order) {
  WireWriter out;
  out.u64(order.sequence);
  out.u8(order.flush ? 1 : 0);
  out.u8(order.flows ? 1 : 0);
  put_keys(out, order.dropped);
  out.bytes(order.plan);
  return out.out();
}

Status decode(std::span<const std::byte> body, StepOrder& order) {
  WireReader in(body);
  if (!in.u64(order.sequence)) return bad("step", "sequence");
  if (!read_flag(in, order.flush)) return bad("step", "flush");
  if (!read_flag(in, order.flows)) return bad("step", "flows");
  if (!read_keys(in, kDroppedKeysMax, order.dropped)) return bad("step", "dropped");
  const size_t head = 8 + 1 + 1 + 4 + order.dropped.size() * kKeyBytes;
  const auto plan = body.subspan(head);
  order.plan.assign(plan.begin(), plan.end());
  return ok_status();
}

std::vector<std::byte> encode(const News& news) {
  WireWriter out;
  out.u8(news.whole ? 1 : 0);
  out.u8(news.last ? 1 : 0);
  out.u8(news.accepts ? 1 : 0);
  put_keys(out, news.there);
  put_keys(out, news.gone);
  put_answers(out, news.staged);
  put_answers(out, news.compared);
  return out.out();
}

Status decode(std::span<const std::byte> body, News& news) {
  WireReader in(body);
  if (!read_flag(in, news.whole) || !read_flag(in, news.last) || !read_flag(in, news.accepts))
    return bad("news", "a flag");
  const size_t most = news.whole ? kNewsKeysAtOnceMax : kNewsKeysMax;
  if (!read_keys(in, most, news.there)) return bad("news", "there");
  if (!read_keys(in, most, news.gone)) return bad("news", "gone");
  if (!read_answers(in, most, news.staged)) return bad("news", "staged");
  if (!read_answers(in, most, news.compared)) return bad("news", "compared");
  return in.done() ? ok_status() : bad("news", "its end");
}

uint64_t order_digest(std::span<const std::byte> body) {
  return XXH3_64bits(body.data(), body.size());
}

}  // namespace tensorfold
