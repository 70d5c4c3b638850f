// What is on disk: the manifest, the files and their hashes. The format is described in docs/bundle.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace fastv {

// One file: a POSIX path relative to the bundle, its size in bytes and its SHA-256 as 64 hex digits.
struct FileRecord {
  std::string path;
  std::int64_t bytes;
  std::string sha256;
};

// A graph's input or output. A dimension is a number, or a name of the graph contract.
struct TensorRecord {
  std::string name;
  std::string dtype;
  std::vector<std::variant<std::int64_t, std::string>> shape;
  std::string meaning;
};

struct GraphRecord {
  std::string path;
  std::vector<TensorRecord> inputs;
  std::vector<TensorRecord> outputs;
};

// Sizes of the model. `max_positions` is the trained context in tokens.
struct ModelRecord {
  std::string family;
  std::string architecture;
  std::int64_t layers;
  std::int64_t hidden_size;
  std::int64_t heads;
  std::int64_t key_value_heads;
  std::int64_t head_size;
  std::int64_t ffn_size;
  std::int64_t vocab_size;
  std::int64_t max_positions;
  std::int64_t parameters;
  std::string decoder;
};

// Token ids that stand for an image token, and that end an answer.
struct TokenRecord {
  std::vector<std::int64_t> image;
  std::vector<std::int64_t> eos;
};

// How pictures become tokens: largest size of each dynamic axis of the vision graph for one picture, and whether
// positions have three rows. What the family's preprocessing needs besides is in the file, and not read here.
struct VisionRecord {
  std::map<std::string, std::int64_t> axes;
  bool mrope = false;
  std::int64_t deepstack = 0;  // decoder layers after which vision features are added once more
};

// bundle.json.
struct Manifest {
  std::int64_t schema_version;
  std::string created_by;
  ModelRecord model;
  std::int64_t k;
  std::string dtype;  // fp32, fp16 or bf16
  std::vector<std::string> rankings;
  TokenRecord tokens;
  std::string image_token;
  VisionRecord vision;                                      // of schema 2; as LLaVA has it for schema 1
  std::vector<std::pair<std::string, GraphRecord>> graphs;  // in the file's order
  std::vector<FileRecord> files;

  const GraphRecord* graph(const std::string& name) const;  // null if there is none
};

// A bundle that was read and checked. A value: copying it copies the description, never the weights.
class Bundle {
 public:
  static constexpr std::int64_t kSchemaVersion = 2;

  // Throws Error (bundle): no bundle there; a file is missing, altered or foreign; the schema is newer.
  // `check_hashes` compares every file with its SHA-256. Leave it on before loading a graph.
  static Bundle open(const std::filesystem::path& path, bool check_hashes = true);

  const std::filesystem::path& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }

  // Throws Error (bundle) if the bundle has no such graph.
  std::filesystem::path graph_path(const std::string& name) const;

  // Folders of its compiled engines, by name.
  std::vector<std::filesystem::path> targets() const;

 private:
  Bundle(std::filesystem::path path, Manifest manifest) : path_(std::move(path)), manifest_(std::move(manifest)) {}
  void check_files(bool check_hashes) const;

  std::filesystem::path path_;
  Manifest manifest_;
};

// SHA-256 of a file as 64 hex digits, read in pieces. Throws Error (bundle) if it cannot be read.
std::string sha256(const std::filesystem::path& path);

}  // namespace fastv
