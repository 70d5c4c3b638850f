#include "fastv/ort.hpp"

#include <sched.h>

#include <algorithm>
#include <thread>

#include <onnxruntime_cxx_api.h>

#include "fastv/error.hpp"
#include "text.hpp"
#ifdef FASTV_CUDA
#include "fastv/cuda.hpp"
#endif

namespace fastv {
namespace {

// The session options of the Python package (fastv_trt/runtime/ort.py), which says why they are what they are.
constexpr std::pair<const char*, const char*> kThreadPool[] = {{"session.force_spinning_stop", "1"},
                                                               {"session.intra_op.spin_duration_us", "200"}};

const std::map<std::string, std::string> kProviders = {{"cpu", "CPUExecutionProvider"},
                                                       {"cuda", "CUDAExecutionProvider"}};

constexpr std::pair<Dtype, ONNXTensorElementDataType> kElements[] = {
    {Dtype::float32, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT},
    {Dtype::float16, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16},
    {Dtype::bfloat16, ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16},
    {Dtype::int64, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64},
    {Dtype::int32, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32}};

ONNXTensorElementDataType element_of(Dtype dtype) {
  for (const auto& [known, element] : kElements)
    if (known == dtype) return element;
  throw Error(Error::Kind::failure, "expected a dtype of ONNX Runtime, found another");
}

Dtype dtype_of(ONNXTensorElementDataType element, const std::string& name) {
  for (const auto& [dtype, known] : kElements)
    if (known == element) return dtype;
  throw Error(Error::Kind::input,
              "expected " + name + " as float or int, found element type " + std::to_string(static_cast<int>(element)));
}

// As ONNX Runtime's Python package writes its errors.
std::string reason_of(const Ort::Exception& error) {
  static constexpr const char* kNames[] = {"OK",
                                           "FAIL",
                                           "INVALID_ARGUMENT",
                                           "NO_SUCHFILE",
                                           "NO_MODEL",
                                           "ENGINE_ERROR",
                                           "RUNTIME_EXCEPTION",
                                           "INVALID_PROTOBUF",
                                           "MODEL_LOADED",
                                           "NOT_IMPLEMENTED",
                                           "INVALID_GRAPH",
                                           "EP_FAIL"};
  const auto code = static_cast<std::size_t>(error.GetOrtErrorCode());
  const std::string name = code < std::size(kNames) ? kNames[code] : "GENERAL ERROR";
  return text::first_line("[ONNXRuntimeError] : " + std::to_string(code) + " : " + name + " : " + error.what());
}

int available_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

Ort::SessionOptions cpu_options(const OrtOptions& given) {
  Ort::SessionOptions options;
  options.SetIntraOpNumThreads(given.threads.value_or(available_cores()));
  options.SetLogSeverityLevel(3);
  for (const auto& [key, value] : kThreadPool) options.AddConfigEntry(key, value);
  options.DisableCpuMemArena();
  return options;
}

// What every session needs to stay alive.
struct Shared {
  Ort::Env env{ORT_LOGGING_LEVEL_ERROR, "fastv"};
};

// One ONNX graph, driven through an I/O binding that is kept between runs.
class OrtSession final : public Session {
 public:
  OrtSession(std::shared_ptr<Shared> shared, std::string graph, const std::filesystem::path& path,
             const Ort::SessionOptions& options, Ort::MemoryInfo place, Place where, const std::string& provider)
      : graph_(std::move(graph)), shared_(std::move(shared)), memory_(std::move(place)), place_(where) {
    try {
      session_ = std::make_shared<Ort::Session>(shared_->env, path.c_str(), options);
      Ort::AllocatorWithDefaultOptions allocator;
      for (std::size_t i = 0; i < session_->GetInputCount(); ++i) {
        std::string name = session_->GetInputNameAllocated(i, allocator).get();
        const auto element = session_->GetInputTypeInfo(i).GetTensorTypeAndShapeInfo().GetElementType();
        inputs_.emplace_back(name, dtype_of(element, name));
      }
      for (std::size_t i = 0; i < session_->GetOutputCount(); ++i)
        outputs_.emplace_back(session_->GetOutputNameAllocated(i, allocator).get());
      binding_ = Ort::IoBinding(*session_);
    } catch (const Ort::Exception& error) {
      throw Error(Error::Kind::failure,
                  "expected " + path.filename().string() + " to load on " + provider + ", found: " + reason_of(error));
    }
  }

  Tensors run(const Tensors& tensors) override {
    std::vector<std::string> free;
    std::vector<Ort::Value> values;
    try {
      for (const auto& [name, dtype] : inputs_) {
        const auto found = tensors.find(name);
        if (found == tensors.end())
          throw Error(Error::Kind::failure, "expected " + name + " for " + graph_ + ", found none");
        if (found->second.dtype != dtype)
          throw Error(Error::Kind::input, "expected " + name + " as " + name_of(dtype) + " for graph " + graph_ +
                                              ", found " + name_of(found->second.dtype));
        if (moved(name, found->second)) binding_.BindInput(name.c_str(), value(found->second));
      }
      for (const std::string& name : outputs_) {
        const auto found = tensors.find(name);
        if (found == tensors.end()) {
          free.push_back(name);
          bound_.erase(name);
          binding_.BindOutput(name.c_str(), memory_);
        } else if (moved(name, found->second)) {
          binding_.BindOutput(name.c_str(), value(found->second));
        }
      }
      session_->Run(Ort::RunOptions{nullptr}, binding_);
      if (!free.empty()) values = binding_.GetOutputValues();
    } catch (const Ort::Exception& error) {
      bound_.clear();
      throw Error(Error::Kind::failure, "expected graph " + graph_ + " to run, found: " + reason_of(error));
    }
    Tensors out;
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      const std::string& name = outputs_[i];
      const bool own = std::find(free.begin(), free.end(), name) != free.end();
      out[name] = own ? owned(std::move(values[i]), name) : tensors.at(name);
    }
    return out;
  }

 private:
  // What each name is bound to. A binding must not keep the caches of a request alive that has ended, so these are
  // addresses and not owners; every run compares every name with them, so memory that is gone is never used.
  struct Bound {
    void* data;
    Shape shape;
    Dtype dtype;
  };

  bool moved(const std::string& name, const Tensor& tensor) {
    const auto found = bound_.find(name);
    if (found != bound_.end() && found->second.data == tensor.data && found->second.shape == tensor.shape &&
        found->second.dtype == tensor.dtype)
      return false;
    bound_.insert_or_assign(name, Bound{tensor.data, tensor.shape, tensor.dtype});
    return true;
  }

  Ort::Value value(const Tensor& tensor) const {
    if (tensor.place != place_)
      throw Error(Error::Kind::failure, "expected tensors where graph " + graph_ + " runs, found one elsewhere");
    return Ort::Value::CreateTensor(memory_, tensor.data, static_cast<std::size_t>(tensor.bytes()), tensor.shape.data(),
                                    tensor.shape.size(), element_of(tensor.dtype));
  }

  Tensor owned(Ort::Value value, const std::string& name) const {
    struct Owner {
      std::shared_ptr<Shared> shared;
      std::shared_ptr<Ort::Session> session;  // outlives the value: its allocator is the session's
      Ort::Value value;
    };
    const auto info = value.GetTensorTypeAndShapeInfo();
    Tensor out;
    out.shape = info.GetShape();
    out.dtype = dtype_of(info.GetElementType(), name);
    out.place = place_;
    out.data = value.GetTensorMutableRawData();
    out.owner = std::make_shared<Owner>(Owner{shared_, session_, std::move(value)});
    return out;
  }

  std::string graph_;
  std::shared_ptr<Shared> shared_;
  std::shared_ptr<Ort::Session> session_;
  Ort::MemoryInfo memory_;
  Place place_;
  Ort::IoBinding binding_{nullptr};
  std::vector<std::pair<std::string, Dtype>> inputs_;
  std::vector<std::string> outputs_;
  std::map<std::string, Bound> bound_;
};

class OrtDevice final : public Device {
 public:
  OrtDevice(Bundle bundle, std::string name, Ort::SessionOptions options, std::shared_ptr<Memory> memory, int gpu)
      : Device(memory), bundle_(std::move(bundle)), name_(std::move(name)), options_(std::move(options)), gpu_(gpu) {}

  std::string name() const override { return name_; }
  std::int64_t capacity(const std::string&, std::int64_t needed) const override { return needed; }

  std::unique_ptr<Session> session(const std::string& graph) override {
    const Place place = memory().place();
    Ort::MemoryInfo info = place == Place::host ? Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault)
                                                : Ort::MemoryInfo("Cuda", OrtDeviceAllocator, gpu_, OrtMemTypeDefault);
    return std::make_unique<OrtSession>(shared_, graph, bundle_.graph_path(graph), options_, std::move(info), place,
                                        kProviders.at(name_));
  }

 private:
  Bundle bundle_;
  std::string name_;
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  Ort::SessionOptions options_;
  int gpu_;
};

std::shared_ptr<Device> cuda_device(const Bundle& bundle, OrtOptions options) {
#ifdef FASTV_CUDA
  auto memory = cuda_memory({options.gpu, options.stream, std::move(options.allocator)});
  Ort::SessionOptions session = cpu_options(options);
  const OrtApi& api = Ort::GetApi();
  OrtCUDAProviderOptionsV2* raw = nullptr;
  Ort::ThrowOnError(api.CreateCUDAProviderOptions(&raw));
  const std::unique_ptr<OrtCUDAProviderOptionsV2, decltype(api.ReleaseCUDAProviderOptions)> provider(
      raw, api.ReleaseCUDAProviderOptions);
  const std::string gpu = std::to_string(options.gpu);
  const char* keys[] = {"device_id"};
  const char* values[] = {gpu.c_str()};
  Ort::ThrowOnError(api.UpdateCUDAProviderOptions(provider.get(), keys, values, 1));
  Ort::ThrowOnError(api.UpdateCUDAProviderOptionsWithValue(provider.get(), "user_compute_stream", memory->stream()));
  session.AppendExecutionProvider_CUDA_V2(*provider);
  return std::make_shared<OrtDevice>(bundle, "cuda", std::move(session), std::move(memory), options.gpu);
#else
  static_cast<void>(bundle);
  static_cast<void>(options);
  throw Error(Error::Kind::unavailable,
              "expected a library that was built with CUDA for device cuda, found one without; build with "
              "-DFASTV_CUDA=ON");
#endif
}

}  // namespace

std::shared_ptr<Device> ort_device(const Bundle& bundle, const std::string& name, OrtOptions options) {
  const auto provider = kProviders.find(name);
  if (provider == kProviders.end())
    throw Error(Error::Kind::input, "expected a device of cpu, cuda, found " + text::quoted(name));
  if (options.threads && *options.threads < 1)
    throw Error(Error::Kind::input, "expected 1 or more threads, found " + std::to_string(*options.threads));
  const std::vector<std::string> available = Ort::GetAvailableProviders();
  if (std::find(available.begin(), available.end(), provider->second) == available.end())
    throw Error(Error::Kind::unavailable, "expected " + provider->second + " for --device " + name + ", found " +
                                              text::joined(available) +
                                              "; install onnxruntime-gpu in place of onnxruntime");
  if (name == "cuda") {
    try {
      return cuda_device(bundle, std::move(options));
    } catch (const Ort::Exception& error) {
      throw Error(Error::Kind::unavailable, "expected " + provider->second + " to load for --device cuda, found: " +
                                                reason_of(error) + "; check its libraries (CUDA, cuDNN)");
    }
  }
  if (bundle.manifest().dtype == "bf16")
    throw Error(Error::Kind::input,
                "expected an fp32 or fp16 bundle on the CPU, found bf16, which its kernels lack; export again");
  Ort::SessionOptions session = cpu_options(options);
  return std::make_shared<OrtDevice>(bundle, name, std::move(session), host_memory(std::move(options.allocator)), 0);
}

}  // namespace fastv
