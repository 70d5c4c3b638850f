#include "fastv/device.hpp"

#include <algorithm>
#include <cstring>
#include <new>

#include "fastv/error.hpp"

namespace fastv {
namespace {

constexpr std::size_t kAlignment = 256;

class HostMemory final : public Memory {
 public:
  explicit HostMemory(Allocator allocator) : allocator_(std::move(allocator)) {}

  Place place() const override { return Place::host; }

  std::shared_ptr<void> allocate(std::size_t bytes) override {
    const std::size_t size = std::max(bytes, kAlignment);
    if (allocator_.allocate) {
      void* block = allocator_.allocate(size);
      if (!block) throw std::bad_alloc();
      return {block, [free = allocator_.free, size](void* p) { free(p, size); }};
    }
    return {::operator new (size, std::align_val_t{kAlignment}),
            [](void* block) { ::operator delete (block, std::align_val_t{kAlignment}); }};
  }

  void zero(void* target, std::size_t bytes) override { std::memset(target, 0, bytes); }

  void write(void* target, const void* host, std::size_t bytes) override {
    if (bytes) std::memcpy(target, host, bytes);
  }

  void read(void* host, const void* source, std::size_t bytes) override {
    if (bytes) std::memcpy(host, source, bytes);
  }

  void copy_rows(void* target, std::size_t target_pitch, const void* source, std::size_t source_pitch,
                 std::size_t width, std::size_t rows) override {
    for (std::size_t i = 0; i < rows && width; ++i)
      std::memcpy(static_cast<char*>(target) + i * target_pitch, static_cast<const char*>(source) + i * source_pitch,
                  width);
  }

  void synchronize() override {}

 private:
  Allocator allocator_;
};

}  // namespace

std::shared_ptr<Memory> host_memory(Allocator allocator) { return std::make_shared<HostMemory>(std::move(allocator)); }

Tensor Device::empty(const Shape& shape, Dtype dtype) {
  Tensor tensor;
  tensor.shape = shape;
  tensor.dtype = dtype;
  tensor.place = memory_->place();
  tensor.owner = memory_->allocate(static_cast<std::size_t>(tensor.bytes()));
  tensor.data = tensor.owner.get();
  return tensor;
}

Tensor Device::zeros(const Shape& shape, Dtype dtype) {
  Tensor tensor = empty(shape, dtype);
  memory_->zero(tensor.data, static_cast<std::size_t>(tensor.bytes()));
  return tensor;
}

Tensor Device::upload(const Tensor& tensor) {
  if (tensor.place == memory_->place()) return tensor;
  if (tensor.place == Place::device)
    throw Error(Error::Kind::input, "expected tensors on the host for device " + name() + ", found one on a GPU");
  Tensor copy = empty(tensor.shape, tensor.dtype);
  memory_->write(copy.data, tensor.data, static_cast<std::size_t>(tensor.bytes()));
  return copy;
}

Tensor Device::upload(const std::vector<std::int64_t>& values, const Shape& shape) {
  Tensor tensor = empty(shape, Dtype::int64);
  write(tensor, values);
  return tensor;
}

void Device::write(const Tensor& target, const std::vector<std::int64_t>& values) {
  if (target.dtype != Dtype::int64 || elements(target.shape) != static_cast<std::int64_t>(values.size()))
    throw Error(Error::Kind::failure, "expected " + name_of(target.dtype) + text_of(target.shape) +
                                          " to write, found int64[" + std::to_string(values.size()) + "]");
  memory_->write(target.data, values.data(), values.size() * sizeof(std::int64_t));
}

void Device::download(const Tensor& tensor, float* into) {
  if (tensor.dtype != Dtype::float32)
    throw Error(Error::Kind::failure, "expected float32 to read, found " + name_of(tensor.dtype));
  if (tensor.place == Place::host) {
    std::memcpy(into, tensor.data, static_cast<std::size_t>(tensor.bytes()));
  } else {
    memory_->read(into, tensor.data, static_cast<std::size_t>(tensor.bytes()));
  }
}

void Device::copy_slots(const Tensor& source, const Tensor& target, std::int64_t slots) {
  const auto step = static_cast<std::size_t>(source.shape[3] * item_bytes(source.dtype));
  const auto pitch = [step](const Tensor& tensor) { return static_cast<std::size_t>(tensor.shape[2]) * step; };
  memory_->copy_rows(target.data, pitch(target), source.data, pitch(source), static_cast<std::size_t>(slots) * step,
                     static_cast<std::size_t>(source.shape[0] * source.shape[1]));
}

}  // namespace fastv
