#include "fastv/target.hpp"

#include <algorithm>

#include "files.hpp"
#include "record.hpp"
#include "text.hpp"

namespace fastv {
namespace {

namespace fs = std::filesystem;
using record::Field;
using record::Object;

const std::string kDescription = "engine.json";
const std::string kSelfTest = "self-test.json";

[[noreturn]] void refuse(const std::string& text) { throw Error(Error::Kind::bundle, text); }

Shape read_shape(const Field& field) {
  return field.list([](const Field& f) { return f.integer(); });
}

std::vector<std::string> read_strings(const Field& field) {
  return field.list([](const Field& f) { return f.string(); });
}

IoRecord read_io(Field field) {
  Object object(std::move(field), "IoRecord");
  IoRecord out;
  out.name = object("name").string();
  out.dtype = object("dtype").string();
  out.shape = read_shape(object("shape"));
  out.axes = object("axes").list([](const Field& f) { return f.dimension(); });
  out.shape_tensor = object("shape_tensor").boolean();
  object.end();
  return out;
}

RangeRecord read_range(const Field& field) {
  Object object(field, "RangeRecord");
  RangeRecord out{read_shape(object("min")), read_shape(object("opt")), read_shape(object("max"))};
  object.end();
  if (out.max.size() != out.min.size()) field.refuse("Value error, min and max differ in their number of dimensions");
  return out;
}

ProfileRecord read_profile(Field field) {
  Object object(std::move(field), "ProfileRecord");
  ProfileRecord out{object("name").string(), object("shapes").items(read_range)};
  object.end();
  return out;
}

EngineRecord read_engine(Field field) {
  Object object(std::move(field), "EngineRecord");
  EngineRecord out;
  out.plan = files::read(object("plan"));
  out.source = object("source").items([](const Field& f) { return f.string(); });
  out.inputs = object("inputs").list(read_io);
  out.outputs = object("outputs").list(read_io);
  out.profiles = object("profiles").list(read_profile);
  for (auto& [output, input] : object("aliases").items([](const Field& f) { return f.string(); }))
    out.aliases.emplace(output, input);
  object.end();
  return out;
}

LimitsRecord read_limits(Field field) {
  Object object(std::move(field), "LimitsRecord");
  LimitsRecord out;
  out.max_prompt = object("max_prompt").integer();
  out.max_images = object("max_images").integer();
  out.max_batch = object("max_batch").integer();
  out.kept = read_shape(object("kept"));
  out.prefix_capacity = object("prefix_capacity").integer();
  out.suffix_capacity = object("suffix_capacity").integer();
  object.end();
  return out;
}

TargetManifest read_manifest(const fs::path& root) {
  const fs::path path = root / kDescription;
  if (!fs::is_regular_file(path))
    refuse("expected engines (a folder with " + kDescription + ") at " + text::path(root) +
           ", found none; make them with build");
  const auto content = record::read(path);
  if (record::version_of(*content).value_or(Target::kSchemaVersion + 1) > Target::kSchemaVersion)
    refuse("expected schema " + std::to_string(Target::kSchemaVersion) + " in " + text::path(path) + ", found " +
           record::version_text(*content) + "; build it again");
  const std::string expected = "a valid description in " + text::path(path);
  Object object(Field{*content, "", expected}, "TargetManifest");
  TargetManifest out;
  out.schema_version = object("schema_version").integer();
  out.created_by = object("created_by").string();
  out.backend = object("backend").one_of({"tensorrt", "tensorrt-rtx"});
  out.library_version = object("library_version").string();
  out.compute_capabilities = read_strings(object("compute_capabilities"));
  out.precision = object("precision").one_of({"fp32", "fp16", "bf16"});
  out.flags = read_strings(object("flags"));
  out.steady = object("steady").boolean();
  out.limits = read_limits(object("limits"));
  out.engines = object("engines").items(read_engine);
  object.end();
  return out;
}

const Shape& shape_of(const std::map<std::string, Shape>& shapes, const std::string& name) {
  const auto found = shapes.find(name);
  if (found == shapes.end()) throw Error(Error::Kind::failure, "expected a shape of " + name + ", found none");
  return found->second;
}

}  // namespace

std::vector<std::string> ProfileRecord::refusals(const std::map<std::string, Shape>& given) const {
  std::vector<std::string> found;
  for (const auto& [name, limits] : shapes) {
    const Shape& shape = shape_of(given, name);
    if (shape.size() != limits.min.size()) {
      found.push_back(name + " has " + std::to_string(shape.size()) + " dimensions, not " +
                      std::to_string(limits.min.size()));
      continue;
    }
    for (std::size_t axis = 0; axis < shape.size(); ++axis)
      if (shape[axis] < limits.min[axis] || shape[axis] > limits.max[axis])
        found.push_back(name + " axis " + std::to_string(axis) + " is " + std::to_string(shape[axis]) + ", not " +
                        std::to_string(limits.min[axis]) + ".." + std::to_string(limits.max[axis]));
  }
  return found;
}

double ProfileRecord::excess(const std::map<std::string, Shape>& given) const {
  double most = 0.0;
  for (const auto& [name, limits] : shapes) {
    const Shape& shape = shape_of(given, name);
    for (std::size_t axis = 0; axis < std::min(shape.size(), limits.max.size()); ++axis)
      most = std::max(
          most, static_cast<double>(shape[axis]) / static_cast<double>(std::max<std::int64_t>(limits.max[axis], 1)));
  }
  return most;
}

const RangeRecord* ProfileRecord::range(const std::string& name) const {
  for (const auto& [found, range] : shapes)
    if (found == name) return &range;
  return nullptr;
}

const EngineRecord* TargetManifest::engine(const std::string& graph) const {
  for (const auto& [found, engine] : engines)
    if (found == graph) return &engine;
  return nullptr;
}

Target Target::open(const fs::path& path, bool check_hashes) {
  Target target(path, read_manifest(path));
  for (const auto& [graph, engine] : target.manifest_.engines) {
    const fs::path plan = path / engine.plan.path;
    if (!fs::is_regular_file(plan) || !files::inside(plan, path))
      refuse("expected the plan " + engine.plan.path + " in " + text::path(path) + ", found none; build it again");
    if (files::altered(plan, engine.plan, check_hashes))
      refuse("expected " + text::path(plan) + " as it was built, found it altered; build it again");
  }
  return target;
}

fs::path Target::plan_path(const std::string& graph) const {
  if (const EngineRecord* engine = manifest_.engine(graph)) return path_ / engine->plan.path;
  std::vector<std::string> names;
  for (const auto& [found, engine] : manifest_.engines) names.push_back(found);
  refuse("expected a plan of " + text::quoted(graph) + " in " + text::path(path_) + ", found " + text::joined(names) +
         "; build it again");
}

std::optional<bool> Target::self_test() const {
  const fs::path path = path_ / kSelfTest;
  if (!fs::is_regular_file(path)) return std::nullopt;
  const auto content = record::read(path);
  const std::string expected = "a valid record in " + text::path(path);
  Object object(Field{*content, "", expected}, "SelfTestRecord");
  object("tool").string();
  object("device").string();
  object("outputs").integer();
  object("min_cosine").real();
  object("max_norm_ratio_error").real();
  const bool passed = object("passed").boolean();
  object.end();
  return passed;
}

std::vector<std::string> Target::stale(const Bundle& bundle) const {
  std::vector<std::string> found;
  for (const auto& [name, graph] : bundle.manifest().graphs)
    if (!manifest_.engine(name)) found.push_back(name + " was not compiled");
  std::map<std::string, std::string> hashes;
  for (const FileRecord& file : bundle.manifest().files) hashes[file.path] = file.sha256;
  for (const auto& [name, engine] : manifest_.engines)
    for (const auto& [path, digest] : engine.source)
      if (const auto now = hashes.find(path); now == hashes.end() || now->second != digest)
        found.push_back(path + " has changed since it was compiled");
  return found;
}

}  // namespace fastv
