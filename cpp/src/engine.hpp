// One engine as a session needs it, and the session that drives it. NvInfer.h is behind `Engine` (trt.cpp), so that
// everything that can go wrong without a GPU is tested without one (tests/engine.cpp).
#pragma once

#include <list>

#include "fastv/cuda.hpp"
#include "fastv/target.hpp"

namespace fastv {

// An execution context of one profile.
class EngineContext {
 public:
  virtual ~EngineContext() = default;
  virtual bool set_input_shape(const std::string& name, const Shape& shape) = 0;
  virtual std::vector<std::string> infer_shapes() = 0;  // names of what is still unknown
  virtual Shape shape(const std::string& name) const = 0;
  virtual bool set_address(const std::string& name, void* data) = 0;
  virtual bool capturable() const = 0;  // RTX compiles kernels for new shapes at first
  virtual bool enqueue() = 0;           // on the device's stream
};

class Engine {
 public:
  virtual ~Engine() = default;
  virtual std::vector<std::string> names() const = 0;
  virtual bool on_host(const std::string& name) const = 0;
  virtual std::size_t profiles() const = 0;
  // The input whose memory an output shares, "" for none; no value where the library's headers cannot tell.
  virtual std::optional<std::string> alias(const std::string& output) const = 0;
  virtual std::unique_ptr<EngineContext> context(std::size_t profile) = 0;  // null where memory is short
  virtual std::string last_error() const = 0;
};

// Decode rounds T up to a multiple of it, so that one CUDA graph serves that many steps.
constexpr std::int64_t kBucket = 64;
constexpr std::size_t kMaxGraphs = 64;

// A context per profile, and a CUDA graph per decode profile, bucket and set of addresses.
// What a run returns without having been given a place for lies in memory that the next run overwrites.
class EngineSession final : public Session {
 public:
  // `slots`: int64 0, 1, ... on the device, as long as the largest capacity, at an address that never changes.
  EngineSession(std::string graph, EngineRecord record, std::unique_ptr<Engine> engine,
                std::shared_ptr<CudaMemory> memory, Tensor slots, bool cuda_graphs);

  Tensors run(const Tensors& tensors) override;

  // Why decode steps are not captured, or nothing.
  const std::optional<std::string>& no_graphs_because() const { return no_graphs_because_; }

 private:
  using Places = std::vector<std::pair<std::string, Tensor>>;
  struct Captured {
    std::size_t profile;
    std::vector<std::pair<void*, Shape>> places;
    std::unique_ptr<CudaGraph> graph;  // null after the first, plain run
  };

  void check_engine() const;
  Places inputs(const Tensors& tensors) const;
  std::size_t profile_for(const Places& inputs) const;
  Places bind(std::size_t profile, const Places& inputs, const Tensors& tensors);
  Tensor output(std::size_t profile, const IoRecord& record, const Tensors& tensors);
  void decode(std::size_t profile, const Places& inputs, const Tensors& tensors);
  std::unique_ptr<CudaGraph> capture(std::size_t profile);
  void enqueue(std::size_t profile);

  std::string graph_;
  EngineRecord record_;
  std::unique_ptr<Engine> engine_;
  std::shared_ptr<CudaMemory> memory_;
  Tensor slots_;
  std::vector<std::unique_ptr<EngineContext>> contexts_;
  std::map<std::string, std::pair<std::shared_ptr<void>, std::int64_t>> own_;  // outputs without a place: block, bytes
  std::list<Captured> graphs_;                                                 // the most recently used first
  std::optional<std::string> no_graphs_because_;
};

}  // namespace fastv
