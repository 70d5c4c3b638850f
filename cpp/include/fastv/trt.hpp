// TensorRT or TensorRT-RTX engines as the backend. In builds with FASTV_TENSORRT only.
// Not run on hardware so far: compiled against NVIDIA's headers, and tested on a simulation of the engine.
#pragma once

#include "fastv/cuda.hpp"
#include "fastv/target.hpp"

namespace fastv {

struct TrtOptions {
  CudaOptions cuda;         // GPU, stream and allocator
  bool cuda_graphs = true;  // capture decode steps; the numbers are the same either way
};

// The device of one target of a bundle; without a name, the first that runs here. All its sessions share one stream.
// Throws Error: no such target (input), none runs here, with every reason (unavailable), a plan was altered (bundle).
std::shared_ptr<Device> trt_device(const Bundle& bundle, const std::string& target = "", TrtOptions options = {});

}  // namespace fastv
