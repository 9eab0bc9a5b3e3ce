// Random numbers from the kernel: seeds of requests that gave none, ids of replies and calls.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tensorfold::api {

uint64_t random_u64();
std::string random_id(std::string_view prefix);  // prefix + 24 hexadecimal digits

}  // namespace tensorfold::api
