// tfctl model quantize: options -> request -> one line per weight, or one JSON document.
#include <algorithm>
#include <charconv>
#include <iomanip>
#include <optional>
#include <ostream>
#include <sstream>
#include <string>
#include <thread>

#include "ctl/verbs.h"
#include "engine/base/json.h"
#include "engine/weights/ldlq.h"
#include "engine/weights/quantize_pack.h"

namespace tensorfold::ctl {
namespace {

// A number option; false when the text is no number. Absent: `value` stays.
template <typename T>
bool take_number(const Invocation& call, std::string_view name, T& value) {
  if (!call.has(name)) return true;
  const std::string text = call.get(name);
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  return parsed.ec == std::errc() && parsed.ptr == end;
}

bool take_bits(const Invocation& call, std::string_view name, std::optional<double>& value) {
  if (!call.has(name)) return true;
  double number = 0;
  if (!take_number(call, name, number)) return false;
  value = number;
  return true;
}

Status wrong(const Invocation& call, std::string_view option, std::string_view expected) {
  return invalid_argument(std::string(option) + " needs " + std::string(expected) + ", not '" +
                          call.get(option) + "'");
}

Status take_choices(const Invocation& call, exl3::PackRequest& request) {
  const auto codebook = exl3::codebook_by_name(call.get("--codebook", "mul1"));
  if (!codebook) return wrong(call, "--codebook", "mul1, mcg or 3inst");
  request.bits.codebook = *codebook;
  const std::string scales = call.get("--out-scales", "auto");
  if (scales == "auto") {
    request.out_scales = exl3::OutScales::kAuto;
  } else if (scales == "always") {
    request.out_scales = exl3::OutScales::kAlways;
  } else if (scales == "never") {
    request.out_scales = exl3::OutScales::kNever;
  } else {
    return wrong(call, "--out-scales", "auto, always or never");
  }
  return ok_status();
}

Result<exl3::PackRequest> request_of(const Invocation& call) {
  exl3::PackRequest request;
  request.in = call.positional[0];
  request.out = call.positional[1];
  request.moments_path = call.get("--hessian");
  if (!take_number(call, "--bits", request.bits.bits)) return wrong(call, "--bits", "a number");
  struct Wish {
    std::string_view option;
    std::optional<double>* value;
  };
  const Wish wishes[] = {{"--head-bits", &request.bits.head},
                         {"--attention-bits", &request.bits.attention},
                         {"--expert-bits", &request.bits.expert},
                         {"--shared-bits", &request.bits.shared},
                         {"--draft-bits", &request.bits.draft}};
  for (const Wish& wish : wishes) {
    if (!take_bits(call, wish.option, *wish.value)) return wrong(call, wish.option, "a number");
  }
  TF_RETURN_IF_ERROR(take_choices(call, request));
  request.threads = static_cast<int>(
      std::clamp(std::thread::hardware_concurrency(), 1u, unsigned{exl3::kQuantizeThreadsMax}));
  if (!take_number(call, "--threads", request.threads) || request.threads < 1 ||
      request.threads > exl3::kQuantizeThreadsMax) {
    return wrong(call, "--threads",
                 "a number from 1 to " + std::to_string(exl3::kQuantizeThreadsMax));
  }
  return request;
}

std::string number_text(double value, int digits) {
  std::ostringstream text;
  text << std::setprecision(digits) << value;
  return text.str();
}

std::string line_of(const exl3::PackedWeight& w) {
  std::ostringstream line;
  line << std::left << std::setw(44) << w.name << std::right << std::setw(7) << w.out << " x "
       << std::left << std::setw(7) << w.in;
  if (w.half_bits == 0) {
    line << "kept, " << number_text(w.bits_per_weight, 4) << " bits";
  } else {
    line << number_text(w.half_bits / 2.0, 3) << " bits  nmse " << std::setw(10)
         << number_text(w.nmse, 4) << (w.used_moments ? " ldlq" : " plain");
  }
  return line.str();
}

Json json_of(const exl3::PackReport& report) {
  Json::Array weights;
  for (const exl3::PackedWeight& w : report.weights) {
    Json item = Json::object({});
    item.set("name", Json::string(w.name));
    item.set("out", Json::integer(w.out));
    item.set("in", Json::integer(w.in));
    item.set("bits", w.half_bits == 0 ? Json::null() : Json::real(w.half_bits / 2.0));
    item.set("bits_per_weight", Json::real(w.bits_per_weight));
    item.set("nmse", w.half_bits == 0 ? Json::null() : Json::real(w.nmse));
    item.set("method", Json::string(w.half_bits == 0 ? "kept" : w.used_moments ? "ldlq" : "plain"));
    weights.push_back(std::move(item));
  }
  Json all = Json::object({});
  all.set("average_bits", Json::real(report.average_bits));
  all.set("bytes_in", Json::integer(report.bytes_in));
  all.set("bytes_out", Json::integer(report.bytes_out));
  all.set("files", Json::integer(report.files));
  all.set("copied_tensors", Json::integer(report.copied_tensors));
  all.set("converted_tables", Json::integer(report.converted_tables));
  all.set("weights", Json::array(std::move(weights)));
  return all;
}

}  // namespace

int run_model_quantize(const Invocation& call) {
  const auto request = request_of(call);
  if (!request.ok()) {
    *call.err << "tfctl: " << request.status().message() << "\n";
    return kExitUsage;
  }
  const auto report = exl3::quantize_pack(*request, [&call](const exl3::PackedWeight& w) {
    if (!call.json) *call.out << line_of(w) << std::endl;
  });
  if (!report.ok()) return fail(call, report.status());
  if (call.json) {
    *call.out << dump_json_python(json_of(*report)) << "\n";
    return kExitOk;
  }
  for (const exl3::PackedWeight& w : report->weights) {
    if (w.half_bits == 0) *call.out << line_of(w) << "\n";
  }
  *call.out << request->out << ": " << report->average_bits << " bits a weight without the head, "
            << report->bytes_out << " bytes of " << report->bytes_in << ", " << report->files
            << (report->files == 1 ? " file\n" : " files\n");
  return kExitOk;
}

}  // namespace tensorfold::ctl
