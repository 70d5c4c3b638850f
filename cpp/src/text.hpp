// Values written as the Python package writes them, so that both give the same one-line errors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace fastv::text {

std::string number(double value);                           // as repr(float)
std::string list(const std::vector<std::int64_t>& values);  // [1, 2]
std::string quoted(const std::string& value);               // as repr(str)
std::string joined(const std::vector<std::string>& values, const std::string& by = ", ");
std::string path(const std::filesystem::path& path);  // as str(Path): no doubled or trailing slash, no "."
std::string first_line(const std::string& value);

}  // namespace fastv::text
