// tfctl model inspect | prepare | dequantize: offline work on model folders.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <ostream>

#include "ctl/model/disk_room.h"
#include "ctl/model/progress.h"
#include "ctl/option_values.h"
#include "ctl/verbs.h"
#include "engine/base/json.h"
#include "engine/cluster/collective.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/convert.h"
#include "engine/weights/image.h"
#include "engine/weights/source_makers.h"

namespace tensorfold::ctl {
namespace {

constexpr int kInspectWorldSizes[] = {1, 2, 4};

std::string decimal(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string size_text(int64_t bytes) {
  if (bytes < 1'000'000) return std::to_string(bytes) + " B";
  if (bytes < 1'000'000'000) return decimal(static_cast<double>(bytes) / 1e6, 1) + " MB";
  return decimal(static_cast<double>(bytes) / 1e9, 2) + " GB";
}

double bits_of(const WeightInfo& info) {
  const double values = static_cast<double>(info.out) * static_cast<double>(info.in);
  return 8.0 * static_cast<double>(info.stored_bytes) / values;
}

std::string format_of(const WeightInfo& info) {
  std::string text(weight_kind_name(info.kind));
  if (info.kind == WeightKind::kExl3) {
    text += " " + std::string(exl3::codebook_name(info.codebook)) + " " +
            decimal(info.half_bits / 2.0, info.half_bits % 2);
  }
  return text;
}

// "layers.3.ffn.experts.17.w1" -> "layers.*.ffn.experts.*.w1"
std::string family_of(std::string_view name) {
  std::string family;
  for (size_t i = 0; i < name.size();) {
    const size_t dot = std::min(name.find('.', i), name.size());
    const std::string_view part = name.substr(i, dot - i);
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == part.npos;
    family += (family.empty() ? "" : ".") + std::string(number ? "*" : part);
    i = dot + 1;
  }
  return family;
}

struct Family {
  int count = 0;
  int64_t bytes = 0, values = 0;
};

struct RankBytes {
  int world_size = 1;
  std::vector<int64_t> bytes;  // one per rank; empty: not possible
  std::string why_not;
};

RankBytes rank_bytes(const Checkpoint& model, int world_size) {
  RankBytes row{world_size, {}, {}};
  for (int rank = 0; rank < world_size; ++rank) {
    const Result<Partition> part = partition(model.config(), rank, world_size);
    if (!part.ok()) {
      row.why_not = part.status().message();
      return row;
    }
    int64_t total = 0;
    for (const Checkpoint::Entry& entry : model.entries()) {
      total += slice_bytes(entry, model.config(), *part);
    }
    row.bytes.push_back(total);
  }
  return row;
}

void print_families(const Checkpoint& model, std::ostream& out) {
  std::vector<std::pair<std::string, std::string>> order;  // family, format and shape
  std::map<std::pair<std::string, std::string>, Family> families;
  for (const Checkpoint::Entry& entry : model.entries()) {
    const WeightInfo& info = entry.info;
    const int64_t shape[] = {info.out, info.in};
    const std::pair key(
        family_of(info.name),
        shape_text(std::span(shape).first(entry.spec.vector ? 1 : 2)) + "  " + format_of(info));
    Family& family = families[key];
    if (family.count++ == 0) order.push_back(key);
    family.bytes += info.stored_bytes;
    family.values += info.out * info.in;
  }
  for (const auto& key : order) {
    const Family& family = families[key];
    const double bits =
        8.0 * static_cast<double>(family.bytes) / static_cast<double>(family.values);
    out << "  " << family.count << " x " << key.first << "  " << key.second << "  "
        << decimal(bits, 2) << " bits  " << size_text(family.bytes) << "\n";
  }
}

void print_report(const Checkpoint& model, std::ostream& out) {
  const ModelConfig& c = model.config();
  out << model.path() << ": " << c.architecture << ", " << c.layers << " layers ("
      << c.decoder_start << " encoder), hidden " << c.hidden << ", " << c.routed_experts
      << " experts, vocabulary " << c.vocab_size << ", " << c.dspark.stages << " drafter stages\n"
      << "weights:\n";
  print_families(model, out);
  for (size_t i = 0; i < model.engram().size(); ++i) {
    const std::optional<EngramStorage>& table = model.engram()[i];
    out << "  Engram table " << engram_table_name(c, static_cast<int>(i)) << ": ";
    if (table.has_value()) {
      out << table->rows.end << " rows of " << table->width << "  " << weight_kind_name(table->kind)
          << "  " << size_text(table->rows.size() * table->row_bytes()) << "\n";
    } else {
      out << "missing\n";
    }
  }
  out << "bytes per rank:\n";
  for (int world_size : kInspectWorldSizes) {
    const RankBytes row = rank_bytes(model, world_size);
    out << "  TP " << world_size << ":";
    for (int64_t bytes : row.bytes) out << " " << size_text(bytes);
    out << (row.why_not.empty() ? "" : " " + row.why_not) << "\n";
  }
  if (model.vision_tensors() > 0) {
    out << "vision tensors (text does not use them): " << model.vision_tensors() << "\n";
  }
  for (const std::string& name : model.missing()) out << "missing: " << name << "\n";
  for (const std::string& name : model.unknown()) out << "unknown: " << name << "\n";
}

Json names_json(const std::vector<std::string>& names) {
  Json::Array list;
  for (const std::string& name : names) list.push_back(Json::string(name));
  return Json::array(std::move(list));
}

Json weight_json(const Checkpoint::Entry& entry) {
  const WeightInfo& info = entry.info;
  Json::Array shape = {Json::integer(info.out)};
  if (!entry.spec.vector) shape.push_back(Json::integer(info.in));
  Json::Object object = {{"name", Json::string(info.name)},
                         {"shape", Json::array(std::move(shape))},
                         {"kind", Json::string(std::string(weight_kind_name(info.kind)))},
                         {"bits", Json::real(bits_of(info))},
                         {"bytes", Json::integer(info.stored_bytes)}};
  if (info.kind == WeightKind::kExl3) {
    object.emplace_back("codebook", Json::string(std::string(exl3::codebook_name(info.codebook))));
    object.emplace_back("width", Json::real(info.half_bits / 2.0));
  }
  return Json::object(std::move(object));
}

Json tables_json(const Checkpoint& model) {
  Json::Array list;
  for (size_t i = 0; i < model.engram().size(); ++i) {
    const std::optional<EngramStorage>& table = model.engram()[i];
    Json::Object row = {
        {"name", Json::string(engram_table_name(model.config(), static_cast<int>(i)))},
        {"present", Json::boolean(table.has_value())}};
    if (table.has_value()) {
      row.emplace_back("rows", Json::integer(table->rows.end));
      row.emplace_back("width", Json::integer(table->width));
      row.emplace_back("kind", Json::string(std::string(weight_kind_name(table->kind))));
      row.emplace_back("bytes", Json::integer(table->rows.size() * table->row_bytes()));
    }
    list.push_back(Json::object(std::move(row)));
  }
  return Json::array(std::move(list));
}

Json ranks_json(const Checkpoint& model) {
  Json::Array list;
  for (int world_size : kInspectWorldSizes) {
    const RankBytes row = rank_bytes(model, world_size);
    Json::Array bytes;
    for (int64_t n : row.bytes) bytes.push_back(Json::integer(n));
    list.push_back(Json::object({{"world_size", Json::integer(world_size)},
                                 {"bytes", Json::array(std::move(bytes))},
                                 {"why_not", Json::string(row.why_not)}}));
  }
  return Json::array(std::move(list));
}

Json report_json(const Checkpoint& model) {
  Json::Array weights;
  for (const Checkpoint::Entry& entry : model.entries()) weights.push_back(weight_json(entry));
  return Json::object({{"schema_version", Json::integer(1)},
                       {"path", Json::string(model.path())},
                       {"architecture", Json::string(model.config().architecture)},
                       {"weights", Json::array(std::move(weights))},
                       {"engram", tables_json(model)},
                       {"ranks", ranks_json(model)},
                       {"vision_tensors", Json::integer(model.vision_tensors())},
                       {"missing", names_json(model.missing())},
                       {"unknown", names_json(model.unknown())}});
}

int64_t needed_bytes(const std::vector<ImageNeed>& needs, int rank) {
  const auto it = std::find_if(needs.begin(), needs.end(),
                               [&](const ImageNeed& need) { return need.rank == rank; });
  return it == needs.end() ? 0 : it->bytes;
}

}  // namespace

int run_model_inspect(const Invocation& call) {
  const Result<std::unique_ptr<Checkpoint>> model =
      Checkpoint::open(call.positional[0], call.get("--engram"));
  if (!model.ok()) return fail(call, model.status());
  if (call.json) {
    *call.out << dump_json_compact(report_json(**model)) << "\n";
  } else {
    print_report(**model, *call.out);
  }
  return (*model)->complete(/*with_engram=*/true).ok() ? kExitOk : kExitFailed;
}

int run_model_dequantize(const Invocation& call) {
  const auto progress = [&](std::string_view line) { *call.err << line << "\n"; };
  const Result<ConvertReport> report =
      dequantize_model(call.positional[0], call.positional[1], progress);
  if (!report.ok()) return fail(call, report.status());
  *call.out << call.positional[1] << ": " << report->converted << " weights to bf16, "
            << report->copied << " tensors copied, " << size_text(report->bytes) << "\n";
  return kExitOk;
}

int run_model_prepare(const Invocation& call) {
  PrepareOptions options;
  options.model_path = call.get("--model");
  options.engram_path = call.get("--engram");
  options.out_path = call.get("--out");
  options.with_engram = call.has("--with-engram");
  if (options.model_path.empty() || options.out_path.empty() || !call.has("--world")) {
    *call.err << "tfctl: model prepare needs --model, --out and --world\n";
    return kExitUsage;
  }
  if (!whole_option(call, "--world", 1, kRanksMax, options.world_size) ||
      !whole_option(call, "--rank", 0, options.world_size - 1, options.rank)) {
    return kExitUsage;
  }
  const auto needs = images_needed(options);
  if (!needs.ok()) return fail(call, needs.status());
  int64_t missing = 0, total = 0;
  for (const ImageNeed& need : *needs) {
    if (need.there) continue;
    total += need.bytes;
    missing += need.bytes - need.part_bytes;
  }
  if (const Status room = models::check_room(options.out_path, missing); !room.ok()) {
    return fail(call, room);
  }
  models::Progress progress(*call.err, system_clock(), isatty(STDERR_FILENO) == 1, "writing");
  int64_t before = 0;  // bytes of the images that are done
  int done = 0, last_rank = -1;
  if (missing > 0) progress.start(total, total - missing, static_cast<int>(needs->size()));
  PrepareEvents events;
  events.line = [&](std::string_view line) { *call.out << line << "\n" << std::flush; };
  events.moved = [&](int rank, int64_t bytes) {
    if (rank != last_rank && last_rank >= 0) {
      before += needed_bytes(*needs, last_rank);
      ++done;
    }
    last_rank = rank;
    progress.look(before + bytes, done);
  };
  const Status status = prepare_images(options, events);
  if (!status.ok()) return fail(call, status);
  progress.look(total, static_cast<int>(needs->size()));
  progress.end();
  return kExitOk;
}

}  // namespace tensorfold::ctl
