// Requests from files: what `fastv-trt run --dump-inputs FILE` writes, a safetensors file with the tensors input_ids,
// image_sizes and vision.<name>, and for some models frame_sizes and position_ids. For products that prepare their
// inputs elsewhere, and for tests.
#pragma once

#include <filesystem>

#include "fastv/chain.hpp"

// Throws fastv::Error (input) if the file is not one.
fastv::Request read_request(const std::filesystem::path& path);
