// A folder under the system's temporary one that goes away with the object.
#pragma once

#include <stdlib.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

namespace tensorfold {

class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "tensorfold-XXXXXX").string();
    BOOST_REQUIRE(::mkdtemp(name.data()) != nullptr);
    root_ = name;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  // Of the folder, or of a file in it.
  std::string path(std::string_view name = "") const {
    return (name.empty() ? root_ : root_ / name).string();
  }

 private:
  std::filesystem::path root_;
};

}  // namespace tensorfold
