// Files that a manifest lists: their records, and whether they are still what was listed.
#pragma once

#include "fastv/bundle.hpp"
#include "record.hpp"

namespace fastv::files {

FileRecord read(record::Field field);
bool inside(const std::filesystem::path& path, const std::filesystem::path& root);  // also after following links
bool altered(const std::filesystem::path& path, const FileRecord& file, bool check_hash);

}  // namespace fastv::files
