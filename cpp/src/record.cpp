#include "record.hpp"

#include <cmath>
#include <fstream>

#include <nlohmann/json.hpp>

#include "text.hpp"

namespace fastv::record {

std::shared_ptr<const Json> read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(Error::Kind::bundle, "expected JSON in " + text::path(path) + ", found: it cannot be read");
  try {
    return std::make_shared<const Json>(Json::parse(file));
  } catch (const nlohmann::json::exception& error) {
    throw Error(Error::Kind::bundle,
                "expected JSON in " + text::path(path) + ", found: " + text::first_line(error.what()));
  }
}

std::optional<std::int64_t> version_of(const Json& document) {
  const auto found = document.is_object() ? document.find("schema_version") : document.end();
  if (found == document.end() || !found->is_number_integer()) return std::nullopt;
  return found->get<std::int64_t>();
}

std::string version_text(const Json& document) {
  const auto found = document.is_object() ? document.find("schema_version") : document.end();
  return found == document.end() || found->is_null() ? "None" : found->dump();
}

void Field::refuse(const std::string& message) const {
  throw Error(Error::Kind::bundle, "expected " + expected + ", found at " + place + ": " + message);
}

std::string Field::string() const {
  if (!value.is_string()) refuse("Input should be a valid string");
  return value.get<std::string>();
}

std::int64_t Field::integer() const {
  if (value.is_number_float() && value.get<double>() != std::trunc(value.get<double>()))
    refuse("Input should be a valid integer, got a number with a fractional part");
  if (value.is_string()) refuse("Input should be a valid integer, unable to parse string as an integer");
  if (!value.is_number()) refuse("Input should be a valid integer");
  return value.get<std::int64_t>();
}

double Field::real() const {
  if (!value.is_number()) refuse("Input should be a valid number");
  return value.get<double>();
}

bool Field::boolean() const {
  if (!value.is_boolean()) refuse("Input should be a valid boolean");
  return value.get<bool>();
}

Dimension Field::dimension() const {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_number_integer()) Field{value, at("int"), expected}.refuse("Input should be a valid integer");
  return value.get<std::int64_t>();
}

std::string Field::one_of(const std::vector<std::string>& values) const {
  if (value.is_string())
    for (const std::string& one : values)
      if (value.get<std::string>() == one) return one;
  std::string offered;
  for (std::size_t i = 0; i < values.size(); ++i)
    offered += (i == 0 ? "" : i + 1 == values.size() ? " or " : ", ") + ("'" + values[i] + "'");
  refuse("Input should be " + offered);
}

bool Field::is_null() const { return value.is_null(); }

std::vector<Field> Field::elements() const {
  if (!value.is_array()) refuse("Input should be a valid tuple");
  std::vector<Field> out;
  for (std::size_t i = 0; i < value.size(); ++i) out.push_back({value[i], at(std::to_string(i)), expected});
  return out;
}

std::vector<std::pair<std::string, Field>> Field::members() const {
  if (!value.is_object()) refuse("Input should be a valid dictionary");
  std::vector<std::pair<std::string, Field>> out;
  for (const auto& [key, item] : value.items()) out.push_back({key, Field{item, at(key), expected}});
  return out;
}

Object::Object(Field field, const std::string& type) : field_(std::move(field)) {
  if (!field_.value.is_object()) field_.refuse("Input should be a valid dictionary or instance of " + type);
}

Field Object::operator()(const std::string& name) {
  known_.insert(name);
  const auto found = field_.value.find(name);
  if (found == field_.value.end()) Field{field_.value, field_.at(name), field_.expected}.refuse("Field required");
  return Field{*found, field_.at(name), field_.expected};
}

bool Object::has(const std::string& name) {
  known_.insert(name);
  return field_.value.contains(name);
}

void Object::end() const {
  for (const auto& [key, item] : field_.value.items())
    if (!known_.count(key)) Field{item, field_.at(key), field_.expected}.refuse("Extra inputs are not permitted");
}

}  // namespace fastv::record
