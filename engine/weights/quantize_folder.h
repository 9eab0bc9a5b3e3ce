// The folder that a pack is written into: appears whole or not at all. Internal to the quantizer.
#pragma once

#include <memory>
#include <string>

#include "engine/base/json.h"
#include "engine/base/status.h"

namespace tensorfold::exl3 {

class PackFolder {
 public:
  // Makes "OUT.partial.XXXXXX"; fails when `out` exists already.
  static Result<std::unique_ptr<PackFolder>> create(const std::string& out);
  PackFolder(const PackFolder&) = delete;
  PackFolder& operator=(const PackFolder&) = delete;
  ~PackFolder();  // removes what was not committed

  const std::string& path() const { return temporary_; }
  Status write_text(const std::string& name, std::string_view text) const;
  // Copies the files of `in` that are neither weights nor rewritten ones (config.json).
  Status copy_side_files(const std::string& in) const;
  Status commit();  // renames to `out`, on disk when it returns

 private:
  PackFolder(std::string out, std::string temporary)
      : out_(std::move(out)), temporary_(std::move(temporary)) {}
  const std::string out_, temporary_;
  bool committed_ = false;
};

// config.json with `quantization` as its quantization_config; a former one is kept inside it.
Result<std::string> with_quantization(const std::string& config_text, Json quantization);

}  // namespace tensorfold::exl3
