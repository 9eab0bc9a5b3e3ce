// tfctl: steers a tensorfoldd and works on its files offline.
#include <iostream>
#include <string>
#include <vector>

#include "ctl/verb.h"

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  return tensorfold::ctl::run_tfctl(args, std::cin, std::cout, std::cerr);
}
