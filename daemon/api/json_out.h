// Appends JSON text in order: objects, lists and values with the commas where they belong. Strings
// must be valid UTF-8 (utf8_lossy makes them so). For replies and status, where the text is made
// once and never looked at again.
#pragma once

#include <charconv>
#include <cmath>
#include <concepts>
#include <string>
#include <string_view>

#include "engine/base/json.h"

namespace tensorfold::api {

class JsonOut {
 public:
  explicit JsonOut(std::string& out) : out_(out) {}
  // Goes on with an object or list whose first members stand in `out` already.
  static JsonOut continued(std::string& out) {
    JsonOut json(out);
    json.fresh_ = false;
    return json;
  }

  JsonOut& open_object() { return open('{'); }
  JsonOut& close_object() { return close('}'); }
  JsonOut& open_list() { return open('['); }
  JsonOut& close_list() { return close(']'); }

  JsonOut& key(std::string_view name) {
    comma();
    append_json_string(out_, name);
    out_ += ':';
    fresh_ = true;
    return *this;
  }
  JsonOut& string(std::string_view text) {
    comma();
    append_json_string(out_, text);
    return *this;
  }
  template <std::integral T>
  requires(!std::same_as<T, bool>) JsonOut& number(T value) {
    comma();
    out_ += std::to_string(value);
    return *this;
  }
  JsonOut& number(double value) {  // shortest form that reads back; not finite: null
    comma();
    if (!std::isfinite(value)) {
      out_ += "null";
      return *this;
    }
    char text[40];
    const auto end = std::to_chars(text, text + sizeof text, value).ptr;
    out_.append(text, end);
    return *this;
  }
  JsonOut& boolean(bool value) { return raw(value ? "true" : "false"); }
  JsonOut& null() { return raw("null"); }
  JsonOut& raw(std::string_view json) {  // ready JSON text
    comma();
    out_ += json;
    return *this;
  }

 private:
  void comma() {
    if (!fresh_) out_ += ',';
    fresh_ = false;
  }
  JsonOut& open(char bracket) {
    comma();
    out_ += bracket;
    fresh_ = true;
    return *this;
  }
  JsonOut& close(char bracket) {
    out_ += bracket;
    fresh_ = false;
    return *this;
  }

  std::string& out_;
  bool fresh_ = true;  // nothing precedes in this object, list or after this key
};

}  // namespace tensorfold::api
