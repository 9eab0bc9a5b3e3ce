// A filter for the comparison with Python: one JSON text per line in, its two forms out.
//
// Output per line: "P " and dump_json_python, or "E" where it does not parse (Python dialect); then
// "S" where the strict dialect takes it too, else "N".
#include <iostream>
#include <string>

#include "engine/base/json.h"

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    const auto python = tensorfold::parse_json(line, tensorfold::JsonDialect::kPython);
    const auto strict = tensorfold::parse_json(line);
    std::cout << (python.ok() ? "P " + dump_json_python(*python) : std::string("E")) << '\n'
              << (strict.ok() ? "S" : "N") << '\n';
  }
  return 0;
}
