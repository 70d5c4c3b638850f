// Strict reading of JSON records: unknown fields are refused, and the first wrong field is named with its place, in
// the words of the Python package's validator. The JSON library itself is included by record.cpp alone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "fastv/error.hpp"

namespace fastv::record {

using Json = nlohmann::ordered_json;
using Dimension = std::variant<std::int64_t, std::string>;

// The JSON document in a file. Throws Error (bundle) if it cannot be read, or is not JSON.
std::shared_ptr<const Json> read(const std::filesystem::path& path);

// The schema_version of a document; no value if it is not there, or not a whole number. Its text, "None" if absent.
std::optional<std::int64_t> version_of(const Json& document);
std::string version_text(const Json& document);

// A value and where it stands ("files.0.sha256").
struct Field {
  const Json& value;
  std::string place;
  const std::string& expected;  // how the error begins: "a valid manifest in bundle/bundle.json"

  [[noreturn]] void refuse(const std::string& message) const;

  bool is_null() const;
  std::string string() const;
  std::int64_t integer() const;
  double real() const;
  bool boolean() const;
  Dimension dimension() const;
  std::string one_of(const std::vector<std::string>& values) const;
  std::vector<Field> elements() const;                         // of a list
  std::vector<std::pair<std::string, Field>> members() const;  // of an object of any keys, in the file's order

  template <class Read>
  auto list(Read read) const {  // Read: Field -> value
    std::vector<decltype(read(*this))> out;
    for (const Field& element : elements()) out.push_back(read(element));
    return out;
  }

  template <class Read>
  auto items(Read read) const {
    std::vector<std::pair<std::string, decltype(read(*this))>> out;
    for (const auto& [key, member] : members()) out.emplace_back(key, read(member));
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
