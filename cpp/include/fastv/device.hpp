// What a backend offers: memory, and a session per graph. Implementations: ort.hpp, trt.hpp.
#pragma once

#include <functional>

#include "fastv/tensor.hpp"

namespace fastv {

// Where tensors live. One implementation for the host, one for CUDA; a product may bring its own.
// All work on device memory is ordered on one stream; only `read` and `synchronize` wait.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual Place place() const = 0;

  // At least `bytes` bytes (never null, also for 0), aligned to 256, with undefined content, freed with the owner.
  // Throws Error (failure) where there is none left.
  virtual std::shared_ptr<void> allocate(std::size_t bytes) = 0;
  virtual void zero(void* target, std::size_t bytes) = 0;
  virtual void write(void* target, const void* host, std::size_t bytes) = 0;  // `host` may go when this returns
  virtual void read(void* host, const void* source, std::size_t bytes) = 0;   // waits
  virtual void copy_rows(void* target, std::size_t target_pitch, const void* source, std::size_t source_pitch,
                         std::size_t width, std::size_t rows) = 0;
  virtual void synchronize() = 0;
};

// A product's own allocator, for what this library allocates in device or host memory: caches, scratch, uploads.
// Both are called on the thread that uses the device. `allocate` throws, or returns null, where there is none left.
struct Allocator {
  std::function<void*(std::size_t bytes)> allocate;
  std::function<void(void* block, std::size_t bytes)> free;
};

// Memory on the host; without an allocator, aligned memory of the C++ library.
std::shared_ptr<Memory> host_memory(Allocator allocator = {});

// One loaded graph.
class Session {
 public:
  virtual ~Session() = default;

  // Execute with inputs, and the outputs that have a place, bound; other outputs are allocated, or lie in memory that
  // the next run overwrites. A `present.*` output given the tensor of its `past_key_values.*` is written in place.
  // Returns every output by name. Throws Error where a tensor is missing, or of another dtype or shape.
  virtual Tensors run(const Tensors& tensors) = 0;
};

// Memory and sessions of one bundle on one backend.
class Device {
 public:
  explicit Device(std::shared_ptr<Memory> memory) : memory_(std::move(memory)) {}
  virtual ~Device() = default;

  virtual std::string name() const = 0;

  // Cache slots per row to allocate for the graph "prefix" or "suffix" where `needed` are: C of its caches.
  // Throws Error (input) where its capacity is fixed, and less.
  virtual std::int64_t capacity(const std::string& graph, std::int64_t needed) const = 0;

  // Load a graph of the bundle. Throws Error where it cannot run here.
  virtual std::unique_ptr<Session> session(const std::string& graph) = 0;

  Memory& memory() { return *memory_; }

  Tensor empty(const Shape& shape, Dtype dtype);
  Tensor zeros(const Shape& shape, Dtype dtype);  // what was never written must not be NaN: a mask multiplies it by 0
  Tensor upload(const Tensor& tensor);            // as it is if it is here already
  Tensor upload(const std::vector<std::int64_t>& values, const Shape& shape);
  void write(const Tensor& target, const std::vector<std::int64_t>& values);
  void download(const Tensor& tensor, float* into);

  // Copy the first `slots` of axis 2 of one cache [B,G,C,D] into another with more capacity.
  void copy_slots(const Tensor& source, const Tensor& target, std::int64_t slots);

 private:
  std::shared_ptr<Memory> memory_;
};

}  // namespace fastv
