// The folder of a pack and its side files (see quantize_folder.h).
#include "engine/weights/quantize_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "engine/weights/file.h"
#include "engine/weights/quantize_pack.h"

namespace tensorfold::exl3 {
namespace {

namespace fs = std::filesystem;

bool is_side_file(const fs::directory_entry& entry, std::error_code& error) {
  const std::string name = entry.path().filename().string();
  if (!entry.is_regular_file(error) || name.starts_with(".")) return false;
  if (name == "config.json" || name == "quantization_config.json") return false;
  return !name.ends_with(".safetensors") && !name.ends_with(".safetensors.index.json");
}

Status sync_folder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return io_error(path, errno);
  const int rc = ::fsync(fd);
  const int error = errno;
  ::close(fd);
  return rc == 0 ? ok_status() : io_error(path, error);
}

}  // namespace

Result<std::unique_ptr<PackFolder>> PackFolder::create(const std::string& out) {
  std::error_code error;
  fs::path path = fs::path(out).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // "pack/"
  if (path.empty()) return invalid_argument("the output folder has no name");
  if (fs::exists(path, error)) return invalid_argument(path.string() + " exists already");
  std::string temporary = path.string() + ".partial.XXXXXX";
  if (::mkdtemp(temporary.data()) == nullptr) return io_error(temporary, errno);
  if (::chmod(temporary.c_str(), 0755) != 0) return io_error(temporary, errno);
  return std::unique_ptr<PackFolder>(new PackFolder(path.string(), std::move(temporary)));
}

PackFolder::~PackFolder() {
  std::error_code ignored;
  if (!committed_) fs::remove_all(temporary_, ignored);
}

Status PackFolder::write_text(const std::string& name, std::string_view text) const {
  TF_ASSIGN_OR_RETURN(std::unique_ptr<AtomicFile> file,
                      AtomicFile::create(temporary_ + "/" + name));
  TF_RETURN_IF_ERROR(file->append(text));
  return file->commit();
}

Status PackFolder::copy_side_files(const std::string& in) const {
  std::error_code error;
  fs::directory_iterator end, it(in, error);
  if (error) return io_error(in, error.value());
  for (; it != end; it.increment(error)) {
    if (error) return io_error(in, error.value());
    if (!is_side_file(*it, error)) continue;
    TF_ASSIGN_OR_RETURN(const std::string bytes,
                        read_text_file(it->path().string(), kCopiedFileBytesMax));
    TF_RETURN_IF_ERROR(write_text(it->path().filename().string(), bytes));
  }
  return ok_status();
}

Status PackFolder::commit() {
  TF_RETURN_IF_ERROR(sync_folder(temporary_));
  // rename() would replace an empty folder of that name silently; nothing is lost by that.
  if (::rename(temporary_.c_str(), out_.c_str()) != 0) return io_error(out_, errno);
  committed_ = true;
  const std::string parent = fs::path(out_).parent_path().string();
  return sync_folder(parent.empty() ? "." : parent);
}

Result<std::string> with_quantization(const std::string& config_text, Json quantization) {
  TF_ASSIGN_OR_RETURN(Json config, parse_json(config_text));
  if (!config.is_object()) return data_loss("config.json is not an object");
  constexpr std::string_view kKey = "quantization_config";
  if (const Json* former = config.find(kKey); former != nullptr && former->is_object()) {
    quantization.set("original_quantization_config", *former);
  }
  config.set(std::string(kKey), std::move(quantization));
  return dump_json_python(config) + "\n";
}

}  // namespace tensorfold::exl3
