#include "fastv/tensor.hpp"

#include <cstring>

#include "fastv/error.hpp"
#include "text.hpp"

namespace fastv {
namespace {

constexpr struct {
  Dtype dtype;
  const char* name;
  const char* short_name;
  int bytes;
} kDtypes[] = {{Dtype::float32, "float32", "fp32", 4},
               {Dtype::float16, "float16", "fp16", 2},
               {Dtype::bfloat16, "bfloat16", "bf16", 2},
               {Dtype::int64, "int64", "", 8},
               {Dtype::int32, "int32", "", 4}};

std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

std::uint16_t to_bfloat16(float value) {
  const std::uint32_t bits = bits_of(value);
  if (value != value) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

std::uint16_t to_float16(float value) {
  const std::uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
  std::uint32_t half;
  if (rest > 0x7f800000) {
    half = 0x7e00;  // NaN
  } else if (rest >= 0x477ff000) {
    half = 0x7c00;  // rounds to infinity
  } else if (rest >= 0x38800000) {
    half = (rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13;
  } else if (rest < 0x33000000) {
    half = 0;  // rounds to zero
  } else {     // subnormal
    const int shift = 126 - static_cast<int>(rest >> 23);
    const std::uint32_t mantissa = (rest & 0x7fffff) | 0x800000;
    const std::uint32_t below = mantissa & ((1U << shift) - 1), middle = 1U << (shift - 1);
    half = mantissa >> shift;
    half += below > middle || (below == middle && (half & 1));
  }
  return static_cast<std::uint16_t>(sign | half);
}

}  // namespace

std::int64_t item_bytes(Dtype dtype) {
  for (const auto& known : kDtypes)
    if (known.dtype == dtype) return known.bytes;
  throw Error(Error::Kind::input, "expected a known dtype, found another");
}

std::string name_of(Dtype dtype) {
  for (const auto& known : kDtypes)
    if (known.dtype == dtype) return known.name;
  throw Error(Error::Kind::input, "expected a known dtype, found another");
}

Dtype dtype_named(const std::string& name) {
  for (const auto& known : kDtypes)
    if (name == known.name) return known.dtype;
  throw Error(Error::Kind::input,
              "expected a dtype of float32, float16, bfloat16, int64, int32, found " + text::quoted(name));
}

Dtype dtype_of_bundle(const std::string& dtype) {
  for (const auto& known : kDtypes)
    if (dtype == known.short_name) return known.dtype;
  throw Error(Error::Kind::bundle, "expected a bundle of fp32, fp16 or bf16, found " + text::quoted(dtype));
}

std::int64_t elements(const Shape& shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

std::string text_of(const Shape& shape) { return text::list(shape); }

Tensor Tensor::row(std::int64_t index) const {
  Tensor out = *this;
  out.shape.front() = 1;
  out.data = static_cast<char*>(data) + index * out.bytes();
  return out;
}

Tensor Tensor::over(const void* data, Shape shape, Dtype dtype, Place place) {
  Tensor out;
  out.data = const_cast<void*>(data);  // inputs are bound like outputs, but never written
  out.shape = std::move(shape);
  out.dtype = dtype;
  out.place = place;
  return out;
}

Tensor converted(const Tensor& host, Dtype dtype) {
  if (host.dtype == dtype) return host;
  if (host.place != Place::host || host.dtype != Dtype::float32 ||
      (dtype != Dtype::float16 && dtype != Dtype::bfloat16))
    throw Error(Error::Kind::input,
                "expected a " + name_of(dtype) + " tensor, or float32 on the host, found " + name_of(host.dtype));
  const auto* values = static_cast<const float*>(host.data);
  std::vector<std::uint16_t> out(static_cast<std::size_t>(elements(host.shape)));
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = dtype == Dtype::float16 ? to_float16(values[i]) : to_bfloat16(values[i]);
  return Tensor::copy_of(out, host.shape, dtype);
}

}  // namespace fastv
