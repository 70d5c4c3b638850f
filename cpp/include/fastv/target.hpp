// What is on disk under a bundle's engines/: one folder per target, its plans and engine.json (docs/engines.md).
#pragma once

#include <map>

#include "fastv/bundle.hpp"
#include "fastv/tensor.hpp"

namespace fastv {

// One input or output of an engine. -1 is a dynamic dimension.
struct IoRecord {
  std::string name;
  std::string dtype;
  Shape shape;
  std::vector<std::variant<std::int64_t, std::string>> axes;
  bool shape_tensor;
};

struct RangeRecord {
  Shape min, opt, max;
};

// One optimization profile; its index is its place in EngineRecord::profiles.
struct ProfileRecord {
  std::string name;
  std::vector<std::pair<std::string, RangeRecord>> shapes;

  // What does not fit, one text per dimension that is out of range; empty if all of it does.
  std::vector<std::string> refusals(const std::map<std::string, Shape>& shapes) const;
  // How far the shapes are beyond this profile: the largest ratio of a size to its maximum.
  double excess(const std::map<std::string, Shape>& shapes) const;
  const RangeRecord* range(const std::string& name) const;
};

// One plan. `aliases`: output -> the input whose memory it must share (the in-place caches).
struct EngineRecord {
  FileRecord plan;
  std::vector<std::pair<std::string, std::string>> source;
  std::vector<IoRecord> inputs;
  std::vector<IoRecord> outputs;
  std::vector<ProfileRecord> profiles;
  std::map<std::string, std::string> aliases;
};

// What a request may be, in tokens, images and rows; capacities are cache slots per row.
struct LimitsRecord {
  std::int64_t max_prompt, max_images, max_batch;
  Shape kept;
  std::int64_t prefix_capacity, suffix_capacity;
};

// engine.json.
struct TargetManifest {
  std::int64_t schema_version;
  std::string created_by;
  std::string backend;  // tensorrt or tensorrt-rtx
  std::string library_version;
  std::vector<std::string> compute_capabilities;  // as "8.6"
  std::string precision;
  std::vector<std::string> flags;
  bool steady;
  LimitsRecord limits;
  std::vector<std::pair<std::string, EngineRecord>> engines;

  const EngineRecord* engine(const std::string& graph) const;  // null if there is none
};

// A folder of plans that was read and checked.
class Target {
 public:
  static constexpr std::int64_t kSchemaVersion = 1;

  // Throws Error (bundle): no target there; a plan is missing or altered; the schema is newer.
  // Leave `check_hashes` on before loading a plan: it is executable code.
  static Target open(const std::filesystem::path& path, bool check_hashes = true);

  const std::filesystem::path& path() const { return path_; }
  std::string name() const { return path_.filename().string(); }
  const TargetManifest& manifest() const { return manifest_; }
  std::filesystem::path plan_path(const std::string& graph) const;

  // Whether the last comparison with ONNX Runtime (`fastv-trt verify --engine`) passed; no value if there was none.
  // Throws Error (bundle) if its record is damaged.
  std::optional<bool> self_test() const;

  // Why these plans are not this bundle's: graphs that changed, or were never compiled. Empty if they are.
  std::vector<std::string> stale(const Bundle& bundle) const;

 private:
  Target(std::filesystem::path path, TargetManifest manifest)
      : path_(std::move(path)), manifest_(std::move(manifest)) {}

  std::filesystem::path path_;
  TargetManifest manifest_;
};

}  // namespace fastv
