// Jobs of the io threads (see spill_io.h).
#include "engine/cache/spill/spill_io.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace tensorfold {
namespace {

bool ends_with(const std::string& text, std::string_view end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

struct Worker {
  FileSystem& files;
  const SpillPlace& place;

  std::string path_of(const std::string& name) const { return place.folder + "/" + name; }

  // ------------------------------------------------------------ what is there

  Status list_ours(ListDone& out) const {
    TF_ASSIGN_OR_RETURN(std::vector<FolderEntry> entries, files.list(place.folder));
    for (FolderEntry& e : entries) {
      if (e.folder) continue;
      if (ends_with(e.name, kTemporaryEnd)) {
        if (files.remove(path_of(e.name)).ok()) ++out.temporary;
      } else if (ends_with(e.name, kSpillFileEnd) &&
                 static_cast<int64_t>(out.files.size()) < kFolderFilesMax) {
        out.files.push_back(std::move(e));
      }
    }
    return ok_status();
  }

  Status list_foreign(ListDone& out) const {
    TF_ASSIGN_OR_RETURN(const std::vector<FolderEntry> folders, files.list(place.root));
    for (const FolderEntry& folder : folders) {
      const std::string path = place.root + "/" + folder.name;
      if (!folder.folder || path == place.folder) continue;
      const auto entries = files.list(path);
      if (!entries.ok()) continue;  // another user's, or gone
      for (FolderEntry e : *entries) {
        if (e.folder) continue;
        if (ends_with(e.name, kTemporaryEnd)) {
          if (files.remove(path + "/" + e.name).ok()) ++out.temporary;
        } else if (ends_with(e.name, kSpillFileEnd) &&
                   static_cast<int64_t>(out.foreign.size()) < kFolderFilesMax) {
          e.name = folder.name + "/" + e.name;
          out.foreign.push_back(std::move(e));
        }
      }
      if (entries->empty()) (void)files.remove_folder(path);
    }
    return ok_status();
  }

  Status run(ListJob&, SpillDone& done) const {
    ListDone out;
    TF_RETURN_IF_ERROR(list_ours(out));
    TF_RETURN_IF_ERROR(list_foreign(out));
    done.result = std::move(out);
    return ok_status();
  }

  // ------------------------------------------------------------ headers

  Result<SpillHeader> read_header(OpenFile& file) const {
    PageBuffer page(kSpillPageBytes);
    if (page.empty()) return unavailable("no memory for a header");
    if (file.size() < kSpillPageBytes) return data_loss("header: the file is too short");
    TF_RETURN_IF_ERROR(file.read(0, page.bytes()));
    TF_ASSIGN_OR_RETURN(const int64_t length, header_bytes_of(page.bytes()));
    if (length == kSpillPageBytes) return decode_header(page.bytes());
    if (file.size() < length) return data_loss("header: the file is too short");
    PageBuffer pages(length);
    if (pages.empty()) return unavailable("no memory for a header");
    TF_RETURN_IF_ERROR(file.read(0, pages.bytes()));
    return decode_header(pages.bytes());
  }

  Result<SpillHeader> check_file(const std::string& name) const {
    TF_ASSIGN_OR_RETURN(const auto file, files.open(path_of(name)));
    TF_ASSIGN_OR_RETURN(SpillHeader header, read_header(*file));
    if (header.identity != place.identity)
      return data_loss("header: of another model, format, device or rank");
    if (header.file_name() != name) return data_loss("header: belongs to another name");
    if (header.file_bytes() != file->size())
      return data_loss("it has " + std::to_string(file->size()) + " bytes, not " +
                       std::to_string(header.file_bytes()));
    return header;
  }

  Status run(HeadersJob& job, SpillDone& done) const {
    HeadersDone out;
    for (const FolderEntry& e : job.files) {
      auto header = check_file(e.name);
      if (header.ok()) {
        out.found.push_back({std::move(*header), e.modified_us});
      } else if (header.status().code() != StatusCode::kNotFound) {
        out.bad.push_back({e.name, header.status()});
      }
    }
    done.result = std::move(out);
    return ok_status();
  }

  // ------------------------------------------------------------ writing

  Status write_whole(const std::string& path, const PageBuffer& header,
                     const std::vector<PageBuffer>& records) const {
    TF_ASSIGN_OR_RETURN(const auto file, files.create(path));
    int64_t offset = header.size();
    for (const PageBuffer& record : records) {
      TF_RETURN_IF_ERROR(file->write(offset, record.bytes()));
      offset += record.size();
    }
    TF_RETURN_IF_ERROR(file->write(0, header.bytes()));
#ifdef TF_PLANTED_FAULT  // tests: the name is on the disk before the data
    return ok_status();
#else
    return file->sync();
#endif
  }

  Status run(WriteJob& job, SpillDone&) const {
    for (size_t i = 0; i < job.records.size(); ++i)
      seal_entry(job.header.entries[i], job.records[i].bytes());
    const PageBuffer header = encode_header(job.header);
    if (header.empty()) return unavailable("no memory for a header");
    TF_ASSIGN_OR_RETURN(const int64_t free, files.free_bytes(place.folder));
    if (free - job.header.file_bytes() < place.free_bytes_min)
      return Status(StatusCode::kIo,
                    place.folder + ": only " + std::to_string(free >> 20) + " MiB are free", "",
                    std::string(kReasonDiskFull));
    const std::string path = path_of(job.header.file_name());
    const std::string temporary = path + std::string(kTemporaryEnd);
    Status status = write_whole(temporary, header, job.records);
    if (status.ok()) status = files.rename(temporary, path);
    if (!status.ok()) {
      (void)files.remove(temporary);  // else the next start does
      return status;
    }
    return files.sync_folder(place.folder);
  }

  // ------------------------------------------------------------ reading

  Status run(ReadJob& job, SpillDone& done) const {
    const std::string name = job.header.file_name();
    const auto where = [&](const Status& s) { return s.with_context(name); };
    TF_ASSIGN_OR_RETURN(const auto file, files.open(path_of(name)));
    const auto header = read_header(*file);
    if (!header.ok()) return where(header.status());
    if (*header != job.header)
      return data_loss(name +
                       ": the header is not the one that was read "
                       "before");
    if (header->file_bytes() != file->size()) return data_loss(name + ": truncated");
    ReadDone out;
    for (const size_t entry : job.entries) {
      const SpillEntry& e = job.header.entries[entry];
      PageBuffer record(e.record_bytes());
      if (record.empty()) return unavailable("no memory to read a record");
      TF_RETURN_IF_ERROR(file->read(job.header.record_offset(entry), record.bytes()));
      const Status status = check_record(e, record.bytes());
      if (!status.ok()) return where(status);
      decode_record(e, record.bytes(), out.records.emplace_back());
      out.bytes += record.size();
    }
    done.result = std::move(out);
    return ok_status();
  }

  // ------------------------------------------------------------ small ones

  Status run(RemoveJob& job, SpillDone&) const {
    Status first;
    for (const std::string& path : job.paths) {
      const Status status = files.remove(place.root + "/" + path);
      if (!status.ok() && status.code() != StatusCode::kNotFound && first.ok()) first = status;
    }
    if (job.durable && first.ok()) return files.sync_folder(place.folder);
    return first;
  }

  Status run(LockJob&, SpillDone& done) const {
    TF_ASSIGN_OR_RETURN(auto lock, lock_spill_folder(files, place));
    done.result = LockDone{std::move(lock)};
    return ok_status();
  }

  Status run(TouchJob& job, SpillDone&) const {
    return files.touch(path_of(job.name), job.used_us);
  }
};

}  // namespace

Result<std::unique_ptr<FolderLock>> lock_spill_folder(FileSystem& files, const SpillPlace& place) {
  TF_RETURN_IF_ERROR(files.make_folder(place.root));
  TF_ASSIGN_OR_RETURN(auto lock, files.lock(place.root + "/lock"));
  TF_RETURN_IF_ERROR(files.make_folder(place.folder));
  TF_RETURN_IF_ERROR(files.sync_folder(place.root));
  return lock;
}

SpillDone run_spill_job(FileSystem& files, const SpillPlace& place, const Clock& clock,
                        SpillJob job) {
  SpillDone done;
  done.id = job.id;
  done.work = std::move(job.work);
  const int64_t begin = clock.monotonic_us();
  const Worker worker{files, place};
  try {
    done.status = std::visit([&](auto& work) { return worker.run(work, done); }, done.work);
  } catch (const std::exception& e) {
    done.status = internal_error(std::string("spill job: ") + e.what());
  }
  done.elapsed_us = clock.monotonic_us() - begin;
  return done;
}

}  // namespace tensorfold
