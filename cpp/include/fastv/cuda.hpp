// Memory on an NVIDIA GPU, ordered on one stream. In builds with FASTV_CUDA only.
#pragma once

#include "fastv/device.hpp"

namespace fastv {

struct CudaOptions {
  int gpu = 0;             // index of the GPU
  void* stream = nullptr;  // a cudaStream_t of the product; by default one of its own. It has to outlive the device
  Allocator allocator;     // for everything this library allocates on the GPU; by default cudaMallocAsync
};

// A captured CUDA graph: shapes and addresses in it are frozen.
class CudaGraph {
 public:
  virtual ~CudaGraph() = default;
  virtual void launch() = 0;
};

class CudaMemory : public Memory {
 public:
  virtual void* stream() const = 0;  // cudaStream_t
  virtual int gpu() const = 0;

  virtual void begin_capture() = 0;
  virtual std::unique_ptr<CudaGraph> end_capture() = 0;  // what was enqueued since, ready to be launched
};

std::shared_ptr<CudaMemory> cuda_memory(CudaOptions options = {});

// Compute capabilities ("8.6") of the GPUs that CUDA sees, by index; empty, with the reason, where it sees none.
std::vector<std::string> cuda_devices(std::string& reason);

}  // namespace fastv
