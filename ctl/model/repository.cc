#include "ctl/model/repository.h"

#include <algorithm>
#include <functional>
#include <set>

#include "ctl/model/path_rules.h"
#include "engine/base/json.h"

namespace tensorfold::models {
namespace {

constexpr size_t kSha256Digits = 64, kSha1Digits = 40;

std::string text_at(const Json& row, std::string_view name) {
  const Json* value = row.find(name);
  return value != nullptr && value->is_string() ? value->as_string() : "";
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// Every row of a list that comes in pages. `row` says false to end it.
Status for_rows(const HttpOptions& http, std::string url,
                const std::function<Result<bool>(const Json&)>& row) {
  for (int page = 0; page < kListingPagesMax; ++page) {
    TF_ASSIGN_OR_RETURN(const HttpText text, http_get(http, url, kListingPageBytesMax));
    const auto json = parse_json(text.body);
    if (!json.ok()) return json.status().with_context(url);
    if (!json->is_array()) return data_loss(url + ": not a list");
    for (const Json& one : json->as_array()) {
      const Result<bool> more = row(one);
      if (!more.ok()) return more.status().with_context(url);
      if (!*more) return ok_status();
    }
    if (text.link.empty()) return ok_status();
    // Another server's address would get the token.
    if (text.link.rfind(http.base_url + "/", 0) != 0) {
      return data_loss(url + ": its next page is on another server");
    }
    url = text.link;
  }
  return data_loss(url + ": more than " + std::to_string(kListingPagesMax) + " pages");
}

// The one commit of the main branch that begins so.
Result<std::string> long_commit(const HttpOptions& http, const std::string& api,
                                const std::string& name, const std::string& start) {
  std::set<std::string> found;
  TF_RETURN_IF_ERROR(
      for_rows(http, api + "/commits/main?limit=100", [&](const Json& row) -> Result<bool> {
        const std::string id = lower(text_at(row, "id"));
        if (id.size() == kCommitDigits && is_hex(id) && id.rfind(start, 0) == 0) found.insert(id);
        return found.size() < 2;
      }));
  if (found.size() == 1) return *found.begin();
  return invalid_argument(name + (found.empty() ? " has no revision " : " has several commits ") +
                          start + (found.empty() ? "" : "..."));
}

}  // namespace

Result<RemoteFile> remote_file(const Json& row) {
  RemoteFile out;
  out.path = text_at(row, "path");
  TF_RETURN_IF_ERROR(check_remote_path(out.path));
  const Json *size = row.find("size"), *lfs = row.find("lfs");
  const bool large = lfs != nullptr && lfs->is_object();
  if (large && lfs->find("size") != nullptr) size = lfs->find("size");
  const auto bytes = size != nullptr && size->is_int() ? size->as_int64() : std::nullopt;
  if (!bytes || *bytes < 0) return data_loss("the listing gives no size of " + out.path);
  out.bytes = *bytes;
  std::string oid = lower(large ? text_at(*lfs, "oid") : text_at(row, "oid"));
  if (large && oid.rfind("sha256:", 0) == 0) oid = oid.substr(7);
  const size_t digits = large ? kSha256Digits : kSha1Digits;
  if (oid.size() != digits || !is_hex(oid)) {
    return data_loss("the listing gives no hash of " + out.path);
  }
  (large ? out.sha256 : out.git_sha1) = std::move(oid);
  return out;
}

Result<Repository> Repository::open(const HttpOptions& http, const std::string& name,
                                    const std::string& revision) {
  TF_RETURN_IF_ERROR(check_http_options(http));
  TF_RETURN_IF_ERROR(check_repository(name));
  TF_RETURN_IF_ERROR(check_revision(revision));
  const std::string api = http.base_url + "/api/models/" + url_encode(name, true);
  const auto answer =
      http_get(http, api + "/revision/" + url_encode(revision, false), kListingPageBytesMax);
  if (!answer.ok()) {
    const std::string start = lower(revision);
    const bool partial =
        is_hex(start) && start.size() >= kShortCommitDigitsLeast && start.size() < kCommitDigits;
    if (!partial || answer.status().reason() != "not_found") return answer.status();
    TF_ASSIGN_OR_RETURN(std::string commit, long_commit(http, api, name, start));
    return Repository(http, name, std::move(commit));
  }
  const auto json = parse_json(answer->body);
  if (!json.ok()) return json.status().with_context(api + "/revision");
  std::string commit = lower(text_at(*json, "sha"));
  if (commit.size() != kCommitDigits || !is_hex(commit)) {
    return data_loss(api + "/revision: its answer has no commit");
  }
  return Repository(http, name, std::move(commit));
}

std::string Repository::file_url(const std::string& path) const {
  return http_.base_url + "/" + url_encode(name_, true) + "/resolve/" + revision_ + "/" +
         url_encode(path, true);
}

Result<std::vector<RemoteFile>> Repository::list() const {
  std::vector<RemoteFile> out;
  const std::string url = http_.base_url + "/api/models/" + url_encode(name_, true) + "/tree/" +
                          revision_ + "?recursive=1";
  TF_RETURN_IF_ERROR(for_rows(http_, url, [&](const Json& row) -> Result<bool> {
    if (text_at(row, "type") != "file") return true;
    TF_ASSIGN_OR_RETURN(RemoteFile file, remote_file(row));
    if (out.size() >= kRepositoryFilesMax) {
      return data_loss("more than " + std::to_string(kRepositoryFilesMax) + " files");
    }
    out.push_back(std::move(file));
    return true;
  }));
  std::sort(out.begin(), out.end(),
            [](const RemoteFile& a, const RemoteFile& b) { return a.path < b.path; });
  const auto twice =
      std::adjacent_find(out.begin(), out.end(),
                         [](const RemoteFile& a, const RemoteFile& b) { return a.path == b.path; });
  if (twice != out.end()) return data_loss(url + ": lists " + twice->path + " twice");
  if (out.empty()) return data_loss(url + ": lists no file");
  return out;
}

}  // namespace tensorfold::models
