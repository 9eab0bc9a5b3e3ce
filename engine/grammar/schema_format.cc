// The formats of JSON Schema as automata. Each accepts a subset of what the format's standard
// allows (never more); the rules are those of the standards named beside them.
#include <array>
#include <mutex>

#include "engine/grammar/regex.h"
#include "engine/grammar/schema_doc.h"

namespace tensorfold::grammar {
namespace {

// RFC 3339 5.6, with the days of each month and leap years.
const std::string kDate =
    "([0-9]{4}-(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|"
    "[0-9]{4}-(0[469]|11)-(0[1-9]|[12][0-9]|30)|"
    "[0-9]{4}-02-(0[1-9]|1[0-9]|2[0-8])|"
    "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)";
const std::string kTime =
    "(([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]+)?"
    "([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])|23:59:60(\\.[0-9]+)?[Zz])";
// RFC 3339 appendix A.
const std::string kClock = "T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S)";
const std::string kDuration = "P(([0-9]+D|[0-9]+M([0-9]+D)?|[0-9]+Y([0-9]+M([0-9]+D)?)?)(" +
                              kClock + ")?|" + kClock + "|[0-9]+W)";
// RFC 1123 2.1: letters, digits and inner hyphens; 63 octets a label.
const std::string kLabel = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
const std::string kHostname = kLabel + "(\\." + kLabel + ")*";
// RFC 5321 4.1.2, without quoted local parts.
const std::string kAtom = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+";
const std::string kByte = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
const std::string kIpv4 = kByte + "(\\." + kByte + "){3}";
const std::string kH = "[0-9A-Fa-f]{1,4}";

// RFC 4291 2.2.
std::string ipv6() {
  const std::string tail = "(" + kH + ":" + kH + "|" + kIpv4 + ")";
  std::string out = "((" + kH + ":){6}" + tail;
  out += "|::(" + kH + ":){5}" + tail;
  out += "|(" + kH + ")?::(" + kH + ":){4}" + tail;
  for (int before = 1; before <= 4; ++before) {
    out += "|((" + kH + ":){0," + std::to_string(before) + "}" + kH + ")?::";
    const int between = 4 - before;
    if (between > 0) out += "(" + kH + ":){" + std::to_string(between) + "}";
    out += tail;
  }
  out += "|((" + kH + ":){0,5}" + kH + ")?::" + kH;
  out += "|((" + kH + ":){0,6}" + kH + ")?::)";
  return out;
}

// RFC 3986 appendix A; `more` widens the unreserved characters (RFC 3987).
struct UriParts {
  explicit UriParts(const std::string& more) {
    const std::string unreserved = "A-Za-z0-9._~!$&'()*+,;=" + more + "-";
    const std::string escaped = "%[0-9A-Fa-f]{2}";
    pchar = "([:@" + unreserved + "]|" + escaped + ")";
    authority = "(([:" + unreserved + "]|" + escaped + ")*@)?(\\[(" + ipv6() +
                "|v[0-9A-Fa-f]+\\.[:" + unreserved + "]+)\\]|([" + unreserved + "]|" + escaped +
                ")*)(:[0-9]*)?";
    absolute_path = "/(" + pchar + "+(/" + pchar + "*)*)?";
    network = "//" + authority + "(/" + pchar + "*)*";
    tail = "(\\?(" + pchar + "|[/?])*)?(#(" + pchar + "|[/?])*)?";
    first_segment = "([@" + unreserved + "]|" + escaped + ")+";
  }
  std::string uri() const {
    return "[A-Za-z][A-Za-z0-9+.-]*:(" + network + "|" + absolute_path + "|" + pchar + "+(/" +
           pchar + "*)*)?" + tail;
  }
  std::string relative() const {
    return "(" + network + "|" + absolute_path + "|" + first_segment + "(/" + pchar + "*)*)?" +
           tail;
  }
  std::string pchar, authority, absolute_path, network, tail, first_segment;
};

const std::string kUnicode = "\\u00A0-\\uD7FF\\uF900-\\uFDCF\\uFDF0-\\uFFEF";
const std::string kPointer = "(/([^~/]|~[01])*)*";
// RFC 6570.
const std::string kVarchar = "([A-Za-z0-9_]|%[0-9A-Fa-f]{2})";
const std::string kVarspec = kVarchar + "+(\\." + kVarchar + "+)*(:[1-9][0-9]{0,3}|\\*)?";
const std::string kTemplate =
    "([^\\u0000-\\u0020\"'%<>\\\\^`{|}\\u007F-\\u009F]|%[0-9A-Fa-f]{2}|\\{[+#./;?&]?" + kVarspec +
    "(," + kVarspec + ")*\\})*";

std::string source_of(std::string_view name) {
  if (name == "date") return kDate;
  if (name == "time") return kTime;
  if (name == "date-time") return kDate + "[Tt]" + kTime;
  if (name == "duration") return kDuration;
  if (name == "hostname" || name == "host-name") return kHostname;
  if (name == "email") {
    return kAtom + "(\\." + kAtom + ")*@(" + kHostname + "|\\[" + kIpv4 + "\\]|\\[IPv6:" + ipv6() +
           "\\])";
  }
  if (name == "ipv4" || name == "ip-address") return kIpv4;
  if (name == "ipv6") return ipv6();
  if (name == "uuid")
    return "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}";
  if (name == "uri") return UriParts("").uri();
  if (name == "uri-reference")
    return "(" + UriParts("").uri() + "|" + UriParts("").relative() + ")";
  if (name == "iri") return UriParts(kUnicode).uri();
  if (name == "iri-reference")
    return "(" + UriParts(kUnicode).uri() + "|" + UriParts(kUnicode).relative() + ")";
  if (name == "uri-template") return kTemplate;
  if (name == "json-pointer") return kPointer;
  if (name == "relative-json-pointer") return "(0|[1-9][0-9]*)(#|" + kPointer + ")";
  return "";
}

Result<DfaPtr> build(std::string_view name, const std::string& source) {
  TF_ASSIGN_OR_RETURN(DfaPtr dfa, regex_to_dfa(source, RegexMatch::kFull));
  // Labels "??--" are reserved for internationalized names, which have rules of their own.
  if (name == "hostname" || name == "email") {
    TF_ASSIGN_OR_RETURN(const DfaPtr coded,
                        regex_to_dfa("(^|[.@])[A-Za-z0-9]{2}--", RegexMatch::kSearch));
    return dfa_subtract(*dfa, *coded);
  }
  return dfa;
}

}  // namespace

FormatRule format_rule(std::string_view name) {
  if (name == "regex" || name == "idn-email" || name == "idn-hostname") {
    FormatRule rule;
    rule.refused = true;
    return rule;
  }
  // Automata of formats live as long as the process: there are few.
  static std::mutex mutex;
  static std::map<std::string, FormatRule, std::less<>> known;
  const std::lock_guard lock(mutex);
  if (const auto it = known.find(name); it != known.end()) return it->second;
  const std::string source = source_of(name);
  if (source.empty()) return {};
  FormatRule rule;
  const Result<DfaPtr> dfa = build(name, source);
  if (dfa.ok()) {
    rule.dfa = *dfa;
  } else {
    rule.refused = true;
  }
  if (name == "hostname" || name == "host-name") rule.max_chars = 253;
  if (name == "email") rule.max_chars = 254;
  known.emplace(std::string(name), rule);
  return rule;
}

}  // namespace tensorfold::grammar
