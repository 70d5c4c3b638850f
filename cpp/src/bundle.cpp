#include "fastv/bundle.hpp"

#include <algorithm>
#include <set>

#include "files.hpp"
#include "record.hpp"
#include "text.hpp"

namespace fastv {
namespace {

namespace fs = std::filesystem;
using record::Field;
using record::Object;

const std::string kManifest = "bundle.json";
const std::string kUnlisted = "engines";  // described by its own engine.json

[[noreturn]] void refuse(const std::string& text) { throw Error(Error::Kind::bundle, text); }

TensorRecord read_tensor(Field field) {
  Object object(std::move(field), "TensorRecord");
  TensorRecord out;
  out.name = object("name").string();
  out.dtype = object("dtype").string();
  out.shape = object("shape").list([](const Field& f) { return f.dimension(); });
  out.meaning = object("meaning").string();
  object.end();
  return out;
}

GraphRecord read_graph(Field field) {
  Object object(std::move(field), "GraphRecord");
  GraphRecord out;
  out.path = object("path").string();
  out.inputs = object("inputs").list(read_tensor);
  out.outputs = object("outputs").list(read_tensor);
  object.end();
  return out;
}

ModelRecord read_model(Field field) {
  Object object(std::move(field), "ModelRecord");
  ModelRecord out;
  out.family = object("family").string();
  out.architecture = object("architecture").string();
  out.layers = object("layers").integer();
  out.hidden_size = object("hidden_size").integer();
  out.heads = object("heads").integer();
  out.key_value_heads = object("key_value_heads").integer();
  out.head_size = object("head_size").integer();
  out.ffn_size = object("ffn_size").integer();
  out.vocab_size = object("vocab_size").integer();
  out.max_positions = object("max_positions").integer();
  out.parameters = object("parameters").integer();
  out.decoder = object("decoder").string();
  object.end();
  return out;
}

TokenRecord read_tokens(Field field) {
  Object object(std::move(field), "TokenRecord");
  TokenRecord out;
  out.image = object("image").list([](const Field& f) { return f.integer(); });
  out.eos = object("eos").list([](const Field& f) { return f.integer(); });
  object.end();
  return out;
}

VisionRecord read_vision(Field field) {
  Object object(std::move(field), "VisionRecord");
  VisionRecord out;
  static_cast<void>(object("settings").members());
  for (const auto& [axis, size] : object("axes").items([](const Field& f) { return f.integer(); }))
    out.axes[axis] = size;
  if (object.has("positions")) out.mrope = object("positions").one_of({"1d", "mrope"}) == "mrope";
  if (object.has("deepstack")) out.deepstack = object("deepstack").integer();
  if (object.has("video_token"))
    if (const Field token = object("video_token"); !token.is_null()) token.string();
  object.end();
  return out;
}

// What `fastv-trt verify` measured. Read so that a wrong one is refused; nothing here needs the numbers.
void check_verification(Field field) {
  if (field.is_null()) return;
  Object object(std::move(field), "VerificationRecord");
  object("tool").string();
  object("device").string();
  object("cases").integer();
  object("max_abs_logit_difference").real();
  object("min_cosine").real();
  object("max_norm_ratio_error").real();
  if (const Field greedy = object("greedy_tokens_identical"); !greedy.is_null()) greedy.integer();
  object("passed").boolean();
  object.end();
}

Manifest read_manifest(const fs::path& root) {
  const fs::path path = root / kManifest;
  if (!fs::is_regular_file(path))
    refuse("expected a bundle (a folder with " + kManifest + ") at " + text::path(root) +
           ", found none; make one with export");
  const auto content = record::read(path);
  const auto version = record::version_of(*content);
  if (!version)
    refuse("expected a schema_version in " + text::path(path) + ", found none; this is not a fastv-trt bundle");
  if (*version > Bundle::kSchemaVersion)
    refuse("expected schema " + std::to_string(Bundle::kSchemaVersion) + " or older in " + text::path(path) +
           ", found " + std::to_string(*version) + "; upgrade fastv-trt");
  const std::string expected = "a valid manifest in " + text::path(path);
  Object object(Field{*content, "", expected}, "Manifest");
  Manifest out;
  out.schema_version = object("schema_version").integer();
  out.created_by = object("created_by").string();
  out.model = read_model(object("model"));
  out.k = object("k").integer();
  out.dtype = object("dtype").one_of({"fp32", "fp16", "bf16"});
  out.rankings = object("rankings").list([](const Field& f) { return f.string(); });
  out.tokens = read_tokens(object("tokens"));
  out.image_token = object("image_token").string();
  if (out.schema_version >= 2) out.vision = read_vision(object("vision"));
  out.graphs = object("graphs").items(read_graph);
  out.files = object("files").list(files::read);
  if (object.has("verification")) check_verification(object("verification"));
  // A default policy and how weights were quantized: what a request asks for, and what the graphs hold, say enough
  // here.
  for (const char* name : {"operating_point", "quantization"})
    if (object.has(name))
      if (const Field field = object(name); !field.is_null()) static_cast<void>(field.members());
  object.end();
  return out;
}

// Paths in the order of their parts, which is the order in which Python sorts them.
std::vector<fs::path> everything_under(const fs::path& root) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::recursive_directory_iterator(root))
    found.push_back(entry.path().lexically_relative(root));
  std::sort(found.begin(), found.end(), [](const fs::path& a, const fs::path& b) {
    return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end(),
                                        [](const fs::path& x, const fs::path& y) { return x.native() < y.native(); });
  });
  return found;
}

}  // namespace

const GraphRecord* Manifest::graph(const std::string& name) const {
  for (const auto& [found, graph] : graphs)
    if (found == name) return &graph;
  return nullptr;
}

Bundle Bundle::open(const fs::path& path, bool check_hashes) {
  try {
    Bundle bundle(path, read_manifest(path));
    bundle.check_files(check_hashes);
    return bundle;
  } catch (const fs::filesystem_error& error) {
    refuse("expected a bundle that can be read at " + text::path(path) + ", found: " + error.code().message());
  }
}

fs::path Bundle::graph_path(const std::string& name) const {
  if (const GraphRecord* graph = manifest_.graph(name)) return path_ / graph->path;
  std::vector<std::string> names;
  for (const auto& [found, graph] : manifest_.graphs) names.push_back(found);
  refuse("expected a graph " + text::quoted(name) + " in " + text::path(path_) + ", found " + text::joined(names));
}

std::vector<fs::path> Bundle::targets() const {
  std::vector<fs::path> found;
  std::error_code absent;
  for (const auto& entry : fs::directory_iterator(path_ / kUnlisted, absent))
    if (entry.is_directory() && entry.path().filename().string().front() != '.') found.push_back(entry.path());
  std::sort(found.begin(), found.end());
  return found;
}

void Bundle::check_files(bool check_hashes) const {
  const fs::path root = fs::canonical(path_);
  const std::string name = text::path(path_);
  std::set<std::string> listed;
  for (const FileRecord& file : manifest_.files) listed.insert(file.path);
  for (const auto& [graph, record] : manifest_.graphs)
    if (!listed.count(record.path))
      refuse("expected graph " + text::quoted(graph) + " among the files of " + name + ", found " + record.path +
             " unlisted");
  for (const FileRecord& file : manifest_.files) {
    const fs::path target = root / file.path;
    if (!fs::is_regular_file(target))
      refuse("expected " + file.path + " in bundle " + name + ", found nothing; export it again");
    if (!files::inside(target, root))
      refuse("expected " + file.path + " inside bundle " + name + ", found a link that leaves it");
    if (files::altered(target, file, check_hashes))
      refuse("expected " + file.path + " of bundle " + name + " as it was exported, found it altered; export it again");
  }
  for (const fs::path& relative : everything_under(root)) {
    const std::string posix = relative.generic_string();
    if (*relative.begin() == kUnlisted || posix == kManifest || listed.count(posix) ||
        fs::is_directory(root / relative))
      continue;
    refuse("expected only exported files in bundle " + name + ", found " + posix + "; remove it");
  }
}

}  // namespace fastv
