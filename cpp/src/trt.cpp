#include "fastv/trt.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <NvInfer.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <numeric>

#include "engine.hpp"
#include "fastv/error.hpp"
#include "sha256.hpp"
#include "text.hpp"

namespace fastv {
namespace {

// TensorRT-RTX counts its versions from 1; TensorRT with this API begins at 10.
const std::string kBackend = NV_TENSORRT_MAJOR < 8 ? "tensorrt-rtx" : "tensorrt";

std::string library_version() {
  return std::to_string(getInferLibMajorVersion()) + "." + std::to_string(getInferLibMinorVersion()) + "." +
         std::to_string(getInferLibPatchVersion()) + "." + std::to_string(getInferLibBuildVersion());
}

// The library keeps the first logger that it is given for good, so there is one, and it is never destroyed. What is
// logged on a thread goes to that thread's first error.
class Logger final : public nvinfer1::ILogger {
 public:
  static Logger& only() {
    static Logger* const logger = new Logger;
    return *logger;
  }

  static std::string& first_error() {
    static thread_local std::string error;
    return error;
  }

  void log(Severity severity, const char* line) noexcept override {
    if (severity > Severity::kERROR || !first_error().empty()) return;
    try {
      first_error() = text::first_line(line).substr(0, 300);
    } catch (...) {  // no memory for a message: the failure itself is still reported
    }
  }
};

std::string reason() {
  const std::string error = std::exchange(Logger::first_error(), "");
  return error.empty() ? "no reason was logged" : error;
}

nvinfer1::Dims dims_of(const Shape& shape) {
  nvinfer1::Dims dims{};
  dims.nbDims = static_cast<std::int32_t>(std::min<std::size_t>(shape.size(), nvinfer1::Dims::MAX_DIMS));
  for (std::int32_t i = 0; i < dims.nbDims; ++i)
    dims.d[i] = static_cast<std::remove_reference_t<decltype(dims.d[0])>>(shape[static_cast<std::size_t>(i)]);
  return dims;
}

// Calls that some versions of the headers lack: found by name, and answered with "cannot tell" elsewhere.
template <class E>
auto aliased_input(const E& engine, const char* output, int)
    -> decltype(engine.getAliasedInputTensor(output), std::optional<std::string>()) {
  const char* input = engine.getAliasedInputTensor(output);
  return std::string(input ? input : "");
}
template <class E>
std::optional<std::string> aliased_input(const E&, const char*, long) {
  return std::nullopt;
}

template <class C>
auto stream_capturable(const C& context, cudaStream_t stream, int) -> decltype(context.isStreamCapturable(stream)) {
  return context.isStreamCapturable(stream);
}
template <class C>
bool stream_capturable(const C&, cudaStream_t, long) {
  return true;
}

class Context final : public EngineContext {
 public:
  Context(std::unique_ptr<nvinfer1::IExecutionContext> context, cudaStream_t stream)
      : context_(std::move(context)), stream_(stream) {}

  bool set_input_shape(const std::string& name, const Shape& shape) override {
    return context_->setInputShape(name.c_str(), dims_of(shape));
  }

  std::vector<std::string> infer_shapes() override {
    std::vector<const char*> names(64);
    const std::int32_t missing = context_->inferShapes(static_cast<std::int32_t>(names.size()), names.data());
    if (missing < 0) return {reason()};
    return {names.begin(), names.begin() + std::min<std::ptrdiff_t>(missing, 64)};
  }

  Shape shape(const std::string& name) const override {
    const nvinfer1::Dims dims = context_->getTensorShape(name.c_str());
    return {dims.d, dims.d + std::max(dims.nbDims, 0)};
  }

  bool set_address(const std::string& name, void* data) override {
    return context_->setTensorAddress(name.c_str(), data);
  }

  bool capturable() const override { return stream_capturable(*context_, stream_, 0); }
  bool enqueue() override { return context_->enqueueV3(stream_); }

 private:
  std::unique_ptr<nvinfer1::IExecutionContext> context_;
  cudaStream_t stream_;
};

// A plan in memory, mapped and not copied, so that the bytes that were hashed are those that are loaded.
class Mapping {
 public:
  explicit Mapping(const std::filesystem::path& path) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
      size_ = static_cast<std::size_t>(std::filesystem::file_size(path));
      data_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
      ::close(file);
    }
    if (data_ == MAP_FAILED)
      throw Error(Error::Kind::bundle, "expected a plan that can be read at " + text::path(path) + ", found none");
  }
  ~Mapping() { ::munmap(data_, size_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  const void* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  void* data_ = MAP_FAILED;
  std::size_t size_ = 0;
};

class TrtEngine final : public Engine {
 public:
  TrtEngine(const std::filesystem::path& path, const std::string& digest, cudaStream_t stream) : stream_(stream) {
    const Mapping plan(path);
    Sha256 sha;
    sha.update(plan.data(), plan.size());
    if (sha.hex() != digest)
      throw Error(Error::Kind::bundle,
                  "expected " + text::path(path) + " as it was built, found it altered; build it again");
    Logger::first_error().clear();
    runtime_.reset(nvinfer1::createInferRuntime(Logger::only()));
    if (!runtime_) throw Error(Error::Kind::unavailable, "expected " + kBackend + " to start, found: " + reason());
    runtime_->setEngineHostCodeAllowed(false);  // a plan may carry code for the CPU; ours has none
    engine_.reset(runtime_->deserializeCudaEngine(plan.data(), plan.size()));
    if (!engine_)
      throw Error(Error::Kind::failure,
                  "expected " + path.filename().string() + " to load on this GPU, found: " + reason());
  }

  std::vector<std::string> names() const override {
    std::vector<std::string> out;
    for (std::int32_t i = 0; i < engine_->getNbIOTensors(); ++i) out.emplace_back(engine_->getIOTensorName(i));
    return out;
  }

  bool on_host(const std::string& name) const override {
    return engine_->getTensorLocation(name.c_str()) != nvinfer1::TensorLocation::kDEVICE;
  }

  std::size_t profiles() const override { return static_cast<std::size_t>(engine_->getNbOptimizationProfiles()); }

  std::optional<std::string> alias(const std::string& output) const override {
    return aliased_input(*engine_, output.c_str(), 0);
  }

  std::unique_ptr<EngineContext> context(std::size_t profile) override {
    Logger::first_error().clear();
    std::unique_ptr<nvinfer1::IExecutionContext> made(engine_->createExecutionContext());
    if (!made || !made->setOptimizationProfileAsync(static_cast<std::int32_t>(profile), stream_)) return nullptr;
    return std::make_unique<Context>(std::move(made), stream_);
  }

  std::string last_error() const override { return reason(); }

 private:
  cudaStream_t stream_;
  std::unique_ptr<nvinfer1::IRuntime> runtime_;
  std::unique_ptr<nvinfer1::ICudaEngine> engine_;  // destroyed before the runtime
};

class TrtDevice final : public Device {
 public:
  TrtDevice(Target target, std::shared_ptr<CudaMemory> memory, bool cuda_graphs)
      : Device(memory), target_(std::move(target)), cuda_(std::move(memory)), cuda_graphs_(cuda_graphs) {
    const LimitsRecord& limits = target_.manifest().limits;
    std::vector<std::int64_t> count(static_cast<std::size_t>(std::max(limits.prefix_capacity, limits.suffix_capacity)));
    std::iota(count.begin(), count.end(), 0);
    slots_ = upload(count, {static_cast<std::int64_t>(count.size())});
  }

  std::string name() const override { return target_.manifest().backend; }

  std::int64_t capacity(const std::string& graph, std::int64_t needed) const override {
    const LimitsRecord& limits = target_.manifest().limits;
    const std::int64_t fixed = graph == "suffix" ? limits.suffix_capacity : limits.prefix_capacity;
    if (needed > fixed)
      throw Error(Error::Kind::input, "expected prompt and new tokens within the " + std::to_string(fixed) +
                                          " cache slots of the " + graph + " engine, found " + std::to_string(needed) +
                                          "; ask for fewer, or build with a larger --capacity");
    return fixed;
  }

  std::unique_ptr<Session> session(const std::string& graph) override {
    const std::filesystem::path path = target_.plan_path(graph);
    const EngineRecord& record = *target_.manifest().engine(graph);
    auto engine = std::make_unique<TrtEngine>(path, record.plan.sha256, static_cast<cudaStream_t>(cuda_->stream()));
    return std::make_unique<EngineSession>(graph, record, std::move(engine), cuda_, slots_, cuda_graphs_);
  }

 private:
  Target target_;
  std::shared_ptr<CudaMemory> cuda_;
  bool cuda_graphs_;
  Tensor slots_;
};

std::vector<std::string> obstacles(const Target& target, const Bundle& bundle, int gpu) {
  const TargetManifest& manifest = target.manifest();
  std::vector<std::string> found = target.stale(bundle);
  if (!target.self_test().value_or(true))
    found.emplace_back("its self-test failed: wrong numbers on a GPU; build it again, or run verify --engine again");
  if (manifest.backend != kBackend) {
    found.push_back("compiled for " + manifest.backend + ", and this library was built with " + kBackend);
  } else if (manifest.library_version != library_version()) {
    found.push_back("compiled with " + manifest.backend + " " + manifest.library_version + ", and " +
                    library_version() + " is installed; build again");
  }
  std::string why;
  const std::vector<std::string> gpus = cuda_devices(why);
  if (gpus.empty()) {
    found.push_back("no NVIDIA GPU (" + why + ")");
  } else if (gpu < 0 || static_cast<std::size_t>(gpu) >= gpus.size()) {
    found.push_back("there is no GPU " + std::to_string(gpu));
  } else {
    const std::string& own = gpus[static_cast<std::size_t>(gpu)];
    const auto& made_for = manifest.compute_capabilities;
    if (std::find(made_for.begin(), made_for.end(), own) == made_for.end())
      found.push_back("compiled for compute capability " + text::joined(made_for) + ", and here is " + own);
  }
  return found;
}

}  // namespace

std::shared_ptr<Device> trt_device(const Bundle& bundle, const std::string& target, TrtOptions options) {
  const std::vector<std::filesystem::path> paths = bundle.targets();
  std::vector<std::string> names, reasons;
  for (const auto& path : paths) names.push_back(path.filename().string());
  if (paths.empty() || (!target.empty() && std::find(names.begin(), names.end(), target) == names.end()))
    throw Error(Error::Kind::input, "expected engines " + target + " in " + text::path(bundle.path()) + ", found " +
                                        (names.empty() ? "none" : text::joined(names)) + "; make them with build");
  for (const auto& path : paths) {
    if (!target.empty() && path.filename() != target) continue;
    Target opened = Target::open(path);
    const std::vector<std::string> why = obstacles(opened, bundle, options.cuda.gpu);
    if (why.empty()) {
      auto memory = cuda_memory(std::move(options.cuda));
      return std::make_shared<TrtDevice>(std::move(opened), std::move(memory), options.cuda_graphs);
    }
    reasons.push_back(opened.name() + ": " + text::joined(why));
  }
  throw Error(Error::Kind::unavailable,
              "expected engines that run on this machine, found: " + text::joined(reasons, "; "));
}

}  // namespace fastv
