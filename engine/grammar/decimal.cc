// Decimal arithmetic on digit strings, and range automata built from it.
#include "engine/grammar/decimal.h"

#include <algorithm>
#include <cstdlib>

#include "engine/grammar/regex.h"

namespace tensorfold::grammar {
namespace {

constexpr int64_t kStepMax = 1'000'000'000'000;

void trim(Decimal& d) {
  const size_t first = d.whole.find_first_not_of('0');
  d.whole.erase(0, first == std::string::npos ? d.whole.size() : first);
  const size_t last = d.fraction.find_last_not_of('0');
  d.fraction.resize(last == std::string::npos ? 0 : last + 1);
  if (d.zero()) d.negative = false;
}

int compare_size(const Decimal& a, const Decimal& b) {
  if (a.whole.size() != b.whole.size()) return a.whole.size() < b.whole.size() ? -1 : 1;
  const int w = a.whole.compare(b.whole);
  if (w != 0) return w < 0 ? -1 : 1;
  const int f = a.fraction.compare(b.fraction);
  return f == 0 ? 0 : f < 0 ? -1 : 1;
}

// A step as a whole number of 10^-places.
struct Step {
  int64_t units = 1;
  int64_t places = 0;
};

std::optional<Step> step_of(const Decimal& d) {
  const std::string digits = d.whole + d.fraction;
  if (digits.size() > 12 || d.zero()) return std::nullopt;
  Step s;
  s.units = std::strtoll(digits.c_str(), nullptr, 10);
  s.places = static_cast<int64_t>(d.fraction.size());
  return s.units > 0 && s.units < kStepMax ? std::optional(s) : std::nullopt;
}

// The automaton's view of one number text read so far.
class RangeMachine {
 public:
  RangeMachine(const NumberSet& set, std::vector<Step> steps)
      : set_(set), steps_(std::move(steps)) {
    if (set.low) marks_.push_back(*set.low);
    if (set.high) marks_.push_back(*set.high);
    marks_.insert(marks_.end(), set.excluded.begin(), set.excluded.end());
    for (const Decimal& m : marks_) {
      whole_ = std::max(whole_, static_cast<int64_t>(m.whole.size()));
      places_ = std::max(places_, static_cast<int64_t>(m.fraction.size()));
    }
    for (const Step& s : steps_) places_ = std::max(places_, s.places);
  }

  // phase, negative, whole digits, places, nonzero, fraction nonzero, comparisons, remainders
  enum Field : size_t { kPhase, kNegative, kWhole, kPlaces, kNonzero, kFraction, kFirst };
  enum Phase : int64_t { kStart, kSign, kZero, kDigits, kPoint, kDecimals };

  DfaExplorer::Key start() const {
    DfaExplorer::Key key(kFirst + marks_.size() + steps_.size(), 0);
    return key;
  }

  bool step(const DfaExplorer::Key& from, uint8_t byte, DfaExplorer::Key& to) const {
    to = from;
    const int64_t phase = from[kPhase];
    if (byte == '-') {
      to[kPhase] = kSign;
      to[kNegative] = 1;
      return phase == kStart;
    }
    if (byte == '.') {
      if (phase != kZero && phase != kDigits) return false;
      if (!set_.fraction && set_.whole) return false;
      for (size_t i = 0; i < marks_.size(); ++i) to[kFirst + i] = settled(from, i);
      to[kPhase] = kPoint;
      return true;
    }
    const int64_t digit = byte - '0';
    switch (phase) {
      case kStart:
      case kSign:
        to[kPhase] = digit == 0 ? kZero : kDigits;
        return digit == 0 || whole_digit(to, digit);
      case kDigits:
        return whole_digit(to, digit);
      case kPoint:
      case kDecimals:
        to[kPhase] = kDecimals;
        return decimal(to, digit);
      default:
        return false;
    }
  }

  bool accepts(const DfaExplorer::Key& key) const {
    const int64_t phase = key[kPhase];
    if (phase != kZero && phase != kDigits && phase != kDecimals) return false;
    if (key[kFraction] != 0 ? !set_.fraction : !set_.whole) return false;
    if (key[kNegative] != 0 && key[kNonzero] == 0) return false;  // "-0": no second spelling
    size_t mark = 0;
    if (set_.low) {
      const int c = order(key, mark++);
      if (c < 0 || (c == 0 && set_.low_open)) return false;
    }
    if (set_.high) {
      const int c = order(key, mark++);
      if (c > 0 || (c == 0 && set_.high_open)) return false;
    }
    for (; mark < marks_.size(); ++mark) {
      if (order(key, mark) == 0) return false;
    }
    for (size_t i = 0; i < steps_.size(); ++i) {
      int64_t rest = key[kFirst + marks_.size() + i];
      for (int64_t p = std::min(key[kPlaces], steps_[i].places); p < steps_[i].places; ++p)
        rest = rest * 10 % steps_[i].units;
      if (rest != 0) return false;
    }
    return true;
  }

 private:
  bool whole_digit(DfaExplorer::Key& key, int64_t digit) const {
    const int64_t at = key[kWhole];
    for (size_t i = 0; i < marks_.size(); ++i) compare_digit(key, i, marks_[i].whole, at, digit);
    key[kWhole] = std::min(at + 1, whole_ + 1);
    key[kNonzero] |= digit != 0 ? 1 : 0;
    for (size_t i = 0; i < steps_.size(); ++i) {
      int64_t& rest = key[kFirst + marks_.size() + i];
      rest = (rest * 10 + digit) % steps_[i].units;
    }
    return true;
  }

  bool decimal(DfaExplorer::Key& key, int64_t digit) const {
    const int64_t at = key[kPlaces];
    for (size_t i = 0; i < marks_.size(); ++i) {
      const auto& f = marks_[i].fraction;
      if (key[kFirst + i] == 0) {
        const int64_t theirs =
            at < static_cast<int64_t>(f.size()) ? f[static_cast<size_t>(at)] - '0' : 0;
        if (digit != theirs) key[kFirst + i] = digit < theirs ? -1 : 1;
      }
    }
    for (size_t i = 0; i < steps_.size(); ++i) {
      int64_t& rest = key[kFirst + marks_.size() + i];
      if (at < steps_[i].places) {
        rest = (rest * 10 + digit) % steps_[i].units;
      } else if (digit != 0) {
        return false;
      }
    }
    key[kPlaces] = std::min(at + 1, places_ + 1);
    key[kNonzero] |= digit != 0 ? 1 : 0;
    key[kFraction] |= digit != 0 ? 1 : 0;
    return true;
  }

  void compare_digit(DfaExplorer::Key& key, size_t i, const std::string& digits, int64_t at,
                     int64_t digit) const {
    if (key[kFirst + i] != 0 || at >= static_cast<int64_t>(digits.size())) return;
    const int64_t theirs = digits[static_cast<size_t>(at)] - '0';
    if (digit != theirs) key[kFirst + i] = digit < theirs ? -1 : 1;
  }

  // The comparison of sizes once the whole part is complete.
  int64_t settled(const DfaExplorer::Key& key, size_t i) const {
    if (key[kPhase] == kPoint || key[kPhase] == kDecimals) return key[kFirst + i];
    const auto theirs = static_cast<int64_t>(marks_[i].whole.size());
    if (key[kWhole] != theirs) return key[kWhole] < theirs ? -1 : 1;
    return key[kFirst + i];
  }

  // The number against mark i: -1, 0 or 1.
  int order(const DfaExplorer::Key& key, size_t i) const {
    int64_t size = settled(key, i);
    if (size == 0 && key[kPlaces] < static_cast<int64_t>(marks_[i].fraction.size())) size = -1;
    const bool zero = key[kNonzero] == 0;
    const bool negative = key[kNegative] != 0 && !zero;
    if (zero && marks_[i].zero()) return 0;
    if (negative != marks_[i].negative) return negative ? -1 : 1;
    return static_cast<int>(negative ? -size : size);
  }

  const NumberSet& set_;
  std::vector<Step> steps_;
  std::vector<Decimal> marks_;
  int64_t whole_ = 0, places_ = 0;
};

Result<DfaPtr> sign_only(const NumberSet& set) {
  const bool positive = set.low.has_value();
  const bool open = positive ? set.low_open : set.high_open;
  const std::string sign = positive ? "" : "-";
  const std::string number = "(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]{1,2})?";
  const std::string zero = "0(\\.0+)?([eE][+-]?[0-9]{1,2})?";
  const std::string all = positive || open ? sign + "(" + number + ")" : "0|-(" + number + ")";
  TF_ASSIGN_OR_RETURN(const DfaPtr any, regex_to_dfa(all, RegexMatch::kFull));
  if (!open) return any;
  TF_ASSIGN_OR_RETURN(const DfaPtr none, regex_to_dfa(sign + zero, RegexMatch::kFull));
  return dfa_subtract(*any, *none);
}

}  // namespace

std::optional<Decimal> parse_decimal(std::string_view text) {
  Decimal d;
  size_t i = 0;
  if (i < text.size() && text[i] == '-') {
    d.negative = true;
    ++i;
  }
  while (i < text.size() && isdigit(static_cast<unsigned char>(text[i]))) d.whole += text[i++];
  if (i < text.size() && text[i] == '.') {
    for (++i; i < text.size() && isdigit(static_cast<unsigned char>(text[i])); ++i)
      d.fraction += text[i];
  }
  long exponent = 0;
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E'))
    exponent = std::strtol(std::string(text.substr(i + 1)).c_str(), nullptr, 10);
  if (std::labs(exponent) > kDecimalDigitsMax) return std::nullopt;
  for (; exponent > 0; --exponent) {
    d.whole += d.fraction.empty() ? '0' : d.fraction[0];
    if (!d.fraction.empty()) d.fraction.erase(0, 1);
  }
  for (; exponent < 0; ++exponent) {
    d.fraction.insert(d.fraction.begin(), d.whole.empty() ? '0' : d.whole.back());
    if (!d.whole.empty()) d.whole.pop_back();
  }
  trim(d);
  if (d.whole.size() > kDecimalDigitsMax || d.fraction.size() > 2 * kDecimalDigitsMax)
    return std::nullopt;
  return d;
}

std::optional<Decimal> decimal_of(const Json& number) {
  return parse_decimal(number.is_int() ? number.as_string() : dump_json_compact(number));
}

int compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  const int size = compare_size(a, b);
  return a.negative ? -size : size;
}

std::optional<bool> is_multiple(const Decimal& value, const Decimal& step) {
  const auto s = step_of(step);
  if (!s) return std::nullopt;
  int64_t rest = 0;
  for (const char c : value.whole) rest = (rest * 10 + (c - '0')) % s->units;
  for (int64_t p = 0; p < s->places; ++p) {
    const auto at = static_cast<size_t>(p);
    rest = (rest * 10 + (at < value.fraction.size() ? value.fraction[at] - '0' : 0)) % s->units;
  }
  return rest == 0 && static_cast<int64_t>(value.fraction.size()) <= s->places;
}

Result<DfaPtr> number_dfa(const NumberSet& set) {
  if (!set.whole && !set.fraction) return std::make_shared<const Dfa>();
  const bool plain = set.multiples.empty() && set.excluded.empty();
  if (plain && !set.low && !set.high && set.whole) {
    static const DfaPtr kNumber =
        *regex_to_dfa("-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]{1,3})?", RegexMatch::kFull);
    static const DfaPtr kInteger = *regex_to_dfa("0|-?[1-9][0-9]*", RegexMatch::kFull);
    return set.fraction ? kNumber : kInteger;
  }
  if (plain && set.whole && set.fraction &&
      ((set.low && set.low->zero() && !set.high) || (set.high && set.high->zero() && !set.low)))
    return sign_only(set);
  std::vector<Step> steps;
  for (const Decimal& m : set.multiples) {
    const auto s = step_of(m);
    if (!s) return invalid_argument("multipleOf has too many digits to be enforced");
    steps.push_back(*s);
  }
  const RangeMachine machine(set, std::move(steps));
  return DfaExplorer::build(
      machine.start(), "-.0123456789",
      [&](const DfaExplorer::Key& from, uint8_t byte, DfaExplorer::Key& to) {
        return machine.step(from, byte, to);
      },
      [&](const DfaExplorer::Key& key) { return machine.accepts(key) ? 1U : 0U; });
}

}  // namespace tensorfold::grammar
