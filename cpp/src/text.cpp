#include "text.hpp"

#include <charconv>
#include <cmath>

namespace fastv::text {

std::string number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string digits(buffer, end);
  const std::size_t at = digits.find('e');
  const int exponent = std::stoi(digits.substr(at + 1));
  if (exponent < -4 || exponent >= 16) return digits;  // both languages write at least two digits of exponent
  const auto fixed = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed).ptr;
  std::string plain(buffer, fixed);
  return plain.find('.') == std::string::npos ? plain + ".0" : plain;
}

std::string list(const std::vector<std::int64_t>& values) {
  std::vector<std::string> texts;
  for (const std::int64_t value : values) texts.push_back(std::to_string(value));
  return "[" + joined(texts) + "]";
}

std::string quoted(const std::string& value) {
  const char quote = value.find('\'') != std::string::npos && value.find('"') == std::string::npos ? '"' : '\'';
  std::string out(1, quote);
  for (const char c : value) {
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\r') {
      out += "\\r";
    } else {
      if (c == quote || c == '\\') out += '\\';
      out += c;
    }
  }
  return out + quote;
}

std::string joined(const std::vector<std::string>& values, const std::string& by) {
  std::string out;
  for (std::size_t i = 0; i < values.size(); ++i) out += (i ? by : "") + values[i];
  return out;
}

std::string path(const std::filesystem::path& path) {
  std::filesystem::path out = path.root_path();
  for (const auto& part : path.relative_path())
    if (!part.empty() && part != ".") out /= part;
  return out.empty() ? "." : out.string();
}

std::string first_line(const std::string& value) {
  const std::size_t start = value.find_first_not_of(" \t\r\n");
  if (start == std::string::npos) return "";
  const std::string line = value.substr(start, value.find('\n', start) - start);
  return line.substr(0, line.find_last_not_of(" \t\r") + 1);
}

}  // namespace fastv::text
