// From a file of recorded runs to the sequences to run. See eval_golden.h.
#include "ctl/eval_golden.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <map>

namespace tensorfold::ctl {
namespace {

constexpr std::string_view kParts[] = {"prompt",   "tokens",  "token_types",
                                       "prefill.", "decode.", "draft."};
// Steps after which drafts were recorded when the file does not say (no draft.pos): the prompt,
// step 0 and step 9, as positions of the last target hidden, less the prompt's length.
constexpr std::array<int64_t, 3> kUsualDraftOffsets = {-1, 0, 9};

// "p7.prefill.X" -> "p7"; empty when the name is not a prompt's.
std::string prompt_of(std::string_view name) {
  const size_t dot = name.find('.');
  if (dot == std::string_view::npos || dot == 0) return {};
  const std::string_view rest = name.substr(dot + 1);
  for (const std::string_view part : kParts) {
    if (part.ends_with('.') ? rest.starts_with(part) : rest == part) {
      return std::string(name.substr(0, dot));
    }
  }
  return {};
}

std::vector<std::string> prompt_names(const TensorFile& file) {
  std::vector<std::string> names;
  for (const StoredTensor& tensor : file.tensors()) {
    const std::string name = prompt_of(tensor.name);
    if (!name.empty() && std::find(names.begin(), names.end(), name) == names.end()) {
      names.push_back(name);
    }
  }
  return names;
}

Status bad_tensor(const TensorFile& file, const StoredTensor& tensor, const std::string& what) {
  return data_loss(file.path() + ": tensor '" + tensor.name + "' (" + tensor.shape_text() +
                   "): " + what);
}

Result<std::vector<int32_t>> ids_of(const TensorFile& file, const StoredTensor& tensor) {
  if (!tensor.is_integer() || tensor.shape.size() != 1 || tensor.count() < 1) {
    return bad_tensor(file, tensor, "is no list of ids");
  }
  if (tensor.count() > kEvalPromptTokensMax) return bad_tensor(file, tensor, "has too many ids");
  std::vector<int32_t> out;
  for (const int64_t id : tensor.integers()) {
    if (id < 0 || id > std::numeric_limits<int32_t>::max()) {
      return bad_tensor(file, tensor, "has the id " + std::to_string(id));
    }
    out.push_back(static_cast<int32_t>(id));
  }
  return out;
}

Status read_image_rows(const TensorFile& file, const std::string& name, SequenceSpec& spec) {
  const StoredTensor* types = file.find(name + ".token_types");
  if (types == nullptr) return ok_status();
  if (!types->is_integer() || types->count() != static_cast<int64_t>(spec.prompt.size())) {
    return bad_tensor(file, *types, "is not one type per prompt row");
  }
  for (const int64_t type : types->integers()) spec.image.push_back(type >= 0);
  return ok_status();
}

Status read_tokens(const TensorFile& file, const std::string& name, SequenceSpec& spec) {
  const StoredTensor* tokens = file.find(name + ".tokens");
  if (tokens == nullptr) return ok_status();
  TF_ASSIGN_OR_RETURN(spec.steps, ids_of(file, *tokens));
  spec.steps.pop_back();  // the last one is only compared
  return ok_status();
}

Status read_drafts(const TensorFile& file, const std::string& name, SequenceSpec& spec) {
  const StoredTensor* in_id = file.find(name + ".draft.in_id");
  if (in_id == nullptr) return ok_status();
  TF_ASSIGN_OR_RETURN(const std::vector<int32_t> fed, ids_of(file, *in_id));
  const int64_t n = static_cast<int64_t>(spec.prompt.size());
  const StoredTensor* pos = file.find(name + ".draft.pos");
  if (pos == nullptr && fed.size() > kUsualDraftOffsets.size()) {
    return bad_tensor(file, *in_id, "needs '" + name + ".draft.pos' to tell its positions");
  }
  if (pos != nullptr && (!pos->is_integer() || pos->count() != in_id->count())) {
    return bad_tensor(file, *pos, "does not go with " + in_id->shape_text());
  }
  const StoredTensor* ids = file.find(name + ".draft.ids");
  if (ids != nullptr &&
      (!ids->is_integer() || ids->shape.size() != 2 || ids->dim(0) != in_id->count())) {
    return bad_tensor(file, *ids, "does not go with " + in_id->shape_text());
  }
  for (size_t i = 0; i < fed.size(); ++i) {
    DraftPoint point;
    for (int64_t k = 0; ids != nullptr && k < ids->dim(1); ++k) {
      point.chain.push_back(
          static_cast<int32_t>(ids->i64(static_cast<int64_t>(i) * ids->dim(1) + k)));
    }
    point.position = pos != nullptr ? pos->i64(static_cast<int64_t>(i)) : n + kUsualDraftOffsets[i];
    point.token = fed[i];
    const int64_t least = spec.drafts.empty() ? n - 1 : spec.drafts.back().position + 1;
    if (point.position < least || point.position >= n + static_cast<int64_t>(spec.steps.size())) {
      return bad_tensor(file, pos != nullptr ? *pos : *in_id,
                        "position " + std::to_string(point.position) +
                            " is not one that the steps reach, in ascending order");
    }
    spec.drafts.push_back(point);
  }
  return ok_status();
}

// How many last prompt rows, logits and cache entries the prompt's tensors ask for.
Status read_extents(const TensorFile& file, const std::string& name, SequenceSpec& spec) {
  const std::string prefix = name + ".prefill.";
  const int64_t n = static_cast<int64_t>(spec.prompt.size());
  for (const StoredTensor& tensor : file.tensors()) {
    if (!tensor.name.starts_with(prefix)) continue;
    const std::string_view rest = std::string_view(tensor.name).substr(prefix.size());
    if (rest == "logits") {
      spec.logits_rows = std::clamp<int64_t>(tensor.dim(0), 1, n);
    } else if (rest == "taps" || rest.starts_with("topk.") || rest.starts_with("win.")) {
      spec.kept_rows = std::max(spec.kept_rows, tensor.dim(0));
    } else if (rest.starts_with("cache_rows.")) {
      int layer = -1;
      const std::string_view digits = rest.substr(rest.find('.') + 1);
      const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), layer);
      if (parsed.ec != std::errc() || !tensor.is_integer()) {
        return bad_tensor(file, tensor, "names no layer, or holds no entry numbers");
      }
      spec.entries[layer] = tensor.integers();
    } else if (tensor.shape.size() >= 2 && rest.find('.') == std::string_view::npos &&
               rest != "engram_rows") {
      spec.kept_rows = std::max(spec.kept_rows, tensor.dim(1));
    }
  }
  spec.kept_rows = std::min(spec.kept_rows, n);
  return ok_status();
}

}  // namespace

bool golden_needs_prompts(const TensorFile& file) {
  for (const std::string& name : prompt_names(file)) {
    if (file.find(name + ".prompt") == nullptr) return true;
  }
  return false;
}

Result<std::vector<GoldenPrompt>> golden_prompts(const TensorFile& file, const TensorFile* prompts,
                                                 const std::string& only, int64_t chunk) {
  std::vector<GoldenPrompt> out;
  for (const std::string& name : prompt_names(file)) {
    if (!only.empty() && only != name) continue;
    GoldenPrompt prompt;
    prompt.name = name;
    prompt.spec.chunk = chunk;
    const TensorFile* holder = file.find(name + ".prompt") != nullptr ? &file : prompts;
    const StoredTensor* ids = holder == nullptr ? nullptr : holder->find(name + ".prompt");
    if (ids == nullptr) {
      return invalid_argument(file.path() + ": no tensor '" + name +
                              ".prompt': name the file that has it with --prompts");
    }
    TF_ASSIGN_OR_RETURN(prompt.spec.prompt, ids_of(*holder, *ids));
    TF_RETURN_IF_ERROR(read_image_rows(*holder, name, prompt.spec));
    TF_RETURN_IF_ERROR(read_tokens(file, name, prompt.spec));
    TF_RETURN_IF_ERROR(read_drafts(file, name, prompt.spec));
    TF_RETURN_IF_ERROR(read_extents(file, name, prompt.spec));
    out.push_back(std::move(prompt));
  }
  if (out.empty()) {
    return invalid_argument(
        file.path() + (only.empty() ? ": holds no prompt" : ": holds no prompt '" + only + "'"));
  }
  return out;
}

std::vector<const StoredTensor*> golden_constants(const TensorFile& file) {
  std::vector<const StoredTensor*> out;
  for (const StoredTensor& tensor : file.tensors()) {
    if (prompt_of(tensor.name).empty()) out.push_back(&tensor);
  }
  return out;
}

}  // namespace tensorfold::ctl
