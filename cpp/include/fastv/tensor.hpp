// A typed, shaped piece of memory, on the host or on a device: what sessions read and write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace fastv {

using Shape = std::vector<std::int64_t>;

enum class Dtype { float32, float16, bfloat16, int64, int32 };

std::int64_t item_bytes(Dtype dtype);
std::string name_of(Dtype dtype);                 // as in the bundle: "float32"
Dtype dtype_named(const std::string& name);       // of a tensor: "float32"; throws on others
Dtype dtype_of_bundle(const std::string& dtype);  // of a manifest's dtype: "fp16" -> float16
std::int64_t elements(const Shape& shape);
std::string text_of(const Shape& shape);  // [1, 3, 336, 336]

enum class Place { host, device };

// A contiguous block at `data`. Copying it copies the description; `owner` keeps the memory alive, and is empty where
// the caller does that.
struct Tensor {
  void* data = nullptr;
  Shape shape;
  Dtype dtype = Dtype::float32;
  Place place = Place::host;
  std::shared_ptr<void> owner;

  std::int64_t bytes() const { return elements(shape) * item_bytes(dtype); }

  // The sub-tensor [1, ...] at `index` of the first axis; it shares the memory.
  Tensor row(std::int64_t index) const;

  // A tensor over the caller's memory, which has to outlive every use of the tensor. The library never writes to it.
  static Tensor over(const void* data, Shape shape, Dtype dtype, Place place = Place::host);

  // A tensor on the host with its own copy.
  template <class T>
  static Tensor copy_of(const std::vector<T>& values, Shape shape, Dtype dtype) {
    auto owner = std::make_shared<std::vector<T>>(values);
    Tensor tensor = over(owner->data(), std::move(shape), dtype);
    tensor.owner = std::move(owner);
    return tensor;
  }
};

using Tensors = std::map<std::string, Tensor>;

// The same values on the host in another float type, rounded to nearest even. Throws Error (input) between other types.
Tensor converted(const Tensor& host, Dtype dtype);

}  // namespace fastv
