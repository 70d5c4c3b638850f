#include "files.hpp"

#include <algorithm>

#include "text.hpp"

namespace fastv::files {
namespace {

namespace fs = std::filesystem;

bool leaves(const std::string& path) {
  if (path.empty() || path.front() == '/' || path.find_first_of("\\:") != std::string::npos) return true;
  const fs::path parts(path);
  const bool nothing = std::all_of(parts.begin(), parts.end(), [](const fs::path& p) { return p.empty() || p == "."; });
  return nothing || std::any_of(parts.begin(), parts.end(), [](const fs::path& p) { return p == ".."; });
}

bool is_sha256(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

}  // namespace

FileRecord read(record::Field field) {
  record::Object object(std::move(field), "FileRecord");
  FileRecord out;
  const record::Field path = object("path");
  out.path = path.string();
  if (leaves(out.path)) path.refuse("Value error, path " + text::quoted(out.path) + " leaves the bundle");
  const record::Field bytes = object("bytes");
  out.bytes = bytes.integer();
  if (out.bytes < 0) bytes.refuse("Input should be greater than or equal to 0");
  const record::Field digest = object("sha256");
  out.sha256 = digest.string();
  if (!is_sha256(out.sha256)) digest.refuse("String should match pattern '^[0-9a-f]{64}$'");
  object.end();
  return out;
}

bool inside(const fs::path& path, const fs::path& root) {
  const fs::path real = fs::canonical(path), base = fs::canonical(root);
  return std::mismatch(base.begin(), base.end(), real.begin(), real.end()).first == base.end();
}

bool altered(const fs::path& path, const FileRecord& file, bool check_hash) {
  return static_cast<std::int64_t>(fs::file_size(path)) != file.bytes || (check_hash && sha256(path) != file.sha256);
}

}  // namespace fastv::files
