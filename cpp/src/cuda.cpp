#include "fastv/cuda.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "fastv/error.hpp"

namespace fastv {
namespace {

constexpr std::size_t kAlignment = 256;  // TensorRT's; also the least that is allocated

void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  if (status == cudaErrorMemoryAllocation)
    throw Error(Error::Kind::failure,
                "expected enough GPU memory, found none left; use a smaller batch, a shorter prompt, or engines built "
                "with a smaller --capacity");
  throw Error(Error::Kind::failure, std::string("expected ") + call + " to succeed, found " + cudaGetErrorName(status));
}

// One stream of one GPU; its own is destroyed with it.
class Stream {
 public:
  Stream(int gpu, void* given) : gpu_(gpu), own_(given == nullptr), stream_(static_cast<cudaStream_t>(given)) {
    check(cudaSetDevice(gpu), "cudaSetDevice");
    if (own_) check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  ~Stream() {
    if (!own_) return;
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  int gpu() const { return gpu_; }
  cudaStream_t get() const { return stream_; }

 private:
  int gpu_;
  bool own_;
  cudaStream_t stream_;
};

class Graph final : public CudaGraph {
 public:
  Graph(std::shared_ptr<Stream> stream, cudaGraphExec_t executable)
      : stream_(std::move(stream)), executable_(executable) {}
  ~Graph() override { cudaGraphExecDestroy(executable_); }
  void launch() override { check(cudaGraphLaunch(executable_, stream_->get()), "cudaGraphLaunch"); }

 private:
  std::shared_ptr<Stream> stream_;
  cudaGraphExec_t executable_;
};

class Cuda final : public CudaMemory {
 public:
  explicit Cuda(CudaOptions options)
      : allocator_(std::move(options.allocator)), stream_(std::make_shared<Stream>(options.gpu, options.stream)) {}

  Place place() const override { return Place::device; }
  void* stream() const override { return stream_->get(); }
  int gpu() const override { return stream_->gpu(); }

  std::shared_ptr<void> allocate(std::size_t bytes) override {
    const std::size_t size = std::max(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    if (allocator_.allocate) {
      void* block = allocator_.allocate(size);
      if (!block) check(cudaErrorMemoryAllocation, "the allocator");
      return {block, [free = allocator_.free, size, stream = stream_](void* p) { free(p, size); }};
    }
    void* block = nullptr;
    check(cudaMallocAsync(&block, size, stream_->get()), "cudaMallocAsync");
    return {block, [stream = stream_](void* p) { cudaFreeAsync(p, stream->get()); }};
  }

  void zero(void* target, std::size_t bytes) override {
    if (bytes) check(cudaMemsetAsync(target, 0, bytes, stream_->get()), "cudaMemsetAsync");
  }

  // Pageable memory is staged before the call returns, so `host` may go at once.
  void write(void* target, const void* host, std::size_t bytes) override {
    if (bytes) check(cudaMemcpyAsync(target, host, bytes, cudaMemcpyHostToDevice, stream_->get()), "cudaMemcpyAsync");
  }

  void read(void* host, const void* source, std::size_t bytes) override {
    if (bytes) check(cudaMemcpyAsync(host, source, bytes, cudaMemcpyDeviceToHost, stream_->get()), "cudaMemcpyAsync");
    synchronize();
  }

  void copy_rows(void* target, std::size_t target_pitch, const void* source, std::size_t source_pitch,
                 std::size_t width, std::size_t rows) override {
    if (width && rows)
      check(cudaMemcpy2DAsync(target, target_pitch, source, source_pitch, width, rows, cudaMemcpyDeviceToDevice,
                              stream_->get()),
            "cudaMemcpy2DAsync");
  }

  void synchronize() override { check(cudaStreamSynchronize(stream_->get()), "cudaStreamSynchronize"); }

  void begin_capture() override {
    check(cudaStreamBeginCapture(stream_->get(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  }

  std::unique_ptr<CudaGraph> end_capture() override {
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream_->get(), &graph), "cudaStreamEndCapture");
    cudaGraphExec_t executable = nullptr;
    const cudaError_t status = cudaGraphInstantiateWithFlags(&executable, graph, 0);
    cudaGraphDestroy(graph);
    check(status, "cudaGraphInstantiate");
    return std::make_unique<Graph>(stream_, executable);
  }

 private:
  Allocator allocator_;
  std::shared_ptr<Stream> stream_;
};

}  // namespace

std::shared_ptr<CudaMemory> cuda_memory(CudaOptions options) { return std::make_shared<Cuda>(std::move(options)); }

std::vector<std::string> cuda_devices(std::string& reason) {
  int count = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess) {
    reason = std::string("CUDA answers ") + cudaGetErrorName(status) + ": no NVIDIA driver, or one that is too old";
    return {};
  }
  if (count == 0) reason = "CUDA lists no GPU";
  std::vector<std::string> found;
  for (int i = 0; i < count; ++i) {
    int major = 0, minor = 0;
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, i), "cudaDeviceGetAttribute");
    check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, i), "cudaDeviceGetAttribute");
    found.push_back(std::to_string(major) + "." + std::to_string(minor));
  }
  return found;
}

}  // namespace fastv
