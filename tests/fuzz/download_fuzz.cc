// What a server of model files may send, from any bytes: headers, rows of a listing, paths, and the
// record of a folder. A path that is taken stays inside the folder.
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "ctl/model/path_rules.h"
#include "ctl/model/record.h"
#include "ctl/model/repository.h"
#include "ctl/model/retry.h"
#include "engine/base/check.h"

namespace {

void check_path(std::string_view path) {
  using namespace tensorfold;
  if (!models::check_remote_path(path).ok()) return;
  const std::string whole =
      (std::filesystem::path("/model") / std::string(path)).lexically_normal().string();
  TF_CHECK(whole.rfind("/model/", 0) == 0 && whole.size() > 7);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tensorfold;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto range = models::parse_content_range(text)) {
    TF_CHECK(range->first >= 0 && range->last >= range->first && range->total >= -1);
  }
  (void)models::next_link(text);
  TF_CHECK(models::retry_after_ms(text.substr(0, 256), 0) >= -1);
  (void)models::http_fault(503, text);
  check_path(text);
  if (const auto json = parse_json(text); json.ok()) {
    if (const auto file = models::remote_file(*json); file.ok()) {
      check_path(file->path);
      TF_CHECK(file->bytes >= 0 && file->sha256.empty() != file->git_sha1.empty());
    }
  }
  if (const auto record = models::parse_record(text); record.ok()) {
    for (const models::RecordFile& file : record->files) check_path(file.path);
  }
  return 0;
}
