// Strict reading of JSON records: unknown fields are refused, and the first wrong field is named with its place, in
// the words of the Python package's validator.
#pragma once

#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "fastv/error.hpp"

namespace fastv::record {

using Json = nlohmann::ordered_json;
using Dimension = std::variant<std::int64_t, std::string>;

// The JSON document in a file. Throws Error (bundle) if it cannot be read, or is not JSON.
Json read(const std::filesystem::path& path);

// A value and where it stands ("files.0.sha256").
struct Field {
  const Json& value;
  std::string place;
  const std::string& expected;  // how the error begins: "a valid manifest in bundle/bundle.json"

  [[noreturn]] void refuse(const std::string& message) const;

  std::string string() const;
  std::int64_t integer() const;
  double real() const;
  bool boolean() const;
  Dimension dimension() const;
  std::string one_of(const std::vector<std::string>& values) const;

  template <class Read>
  auto list(Read read) const {  // Read: Field -> value
    if (!value.is_array()) refuse("Input should be a valid tuple");
    std::vector<decltype(read(*this))> out;
    for (std::size_t i = 0; i < value.size(); ++i)
      out.push_back(read(Field{value[i], at(std::to_string(i)), expected}));
    return out;
  }

  template <class Read>
  auto items(Read read) const {  // an object of any keys, in the file's order
    if (!value.is_object()) refuse("Input should be a valid dictionary");
    std::vector<std::pair<std::string, decltype(read(*this))>> out;
    for (const auto& [key, item] : value.items()) out.emplace_back(key, read(Field{item, at(key), expected}));
    return out;
  }

  std::string at(const std::string& part) const { return place.empty() ? part : place + "." + part; }
};

// An object with known fields. Read all of them in their order, then call `end`.
class Object {
 public:
  Object(Field field, const std::string& type);

  Field operator()(const std::string& name);  // a required field
  bool has(const std::string& name);          // whether an optional field is there
  void end() const;                           // refuses what was not asked for

 private:
  Field field_;
  std::set<std::string> known_;
};

}  // namespace fastv::record
