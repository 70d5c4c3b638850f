// ONNX Runtime as the backend: the CPU provider, and the CUDA provider where the library was built with FASTV_CUDA.
#pragma once

#include "fastv/bundle.hpp"
#include "fastv/device.hpp"

namespace fastv {

struct OrtOptions {
  std::optional<int> threads;  // of the CPU provider, per graph; by default all cores that this process may use
  Allocator allocator;         // for caches, scratch and uploads; ONNX Runtime's own activations are not in it
  int gpu = 0;                 // index of the GPU
  void* stream = nullptr;      // a cudaStream_t to order all work on; by default one of its own
};

// A device by name, "cpu" or "cuda". Throws Error: unknown name or a dtype that it cannot run (input), a provider that
// is not there (unavailable).
std::shared_ptr<Device> ort_device(const Bundle& bundle, const std::string& name = "cpu", OrtOptions options = {});

}  // namespace fastv
