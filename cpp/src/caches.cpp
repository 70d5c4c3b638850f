#include "fastv/caches.hpp"

#include <algorithm>

#include "fastv/error.hpp"

namespace fastv {

Caches::Caches(const Manifest& manifest, std::shared_ptr<Device> device, std::size_t count, std::int64_t prefix,
               std::int64_t suffix)
    : rows(count),
      device_(std::move(device)),
      k_(static_cast<std::size_t>(manifest.k)),
      heads_(manifest.model.key_value_heads),
      head_size_(manifest.model.head_size),
      dtype_(dtype_of_bundle(manifest.dtype)),
      capacity_{device_->capacity("prefix", prefix), device_->capacity("suffix", suffix)} {
  for (std::size_t i = 0; i < static_cast<std::size_t>(manifest.model.layers); ++i)
    layers_.push_back(pair(capacity_[i < k_ ? 0 : 1]));
}

Caches::Pair Caches::pair(std::int64_t capacity) const {
  const Shape shape = {static_cast<std::int64_t>(rows.size()), heads_, capacity, head_size_};
  return {device_->zeros(shape, dtype_), device_->zeros(shape, dtype_)};
}

std::int64_t Caches::bytes() const {
  std::int64_t sum = 0;
  for (const auto& [key, value] : layers_) sum += key.bytes() + value.bytes();
  return sum;
}

void Caches::bind_prefix(Tensors& tensors, std::optional<std::size_t> row) const { bind(tensors, 0, k_, row); }

void Caches::bind_suffix(Tensors& tensors, std::optional<std::size_t> row) const {
  bind(tensors, k_, layers_.size(), row);
}

void Caches::bind(Tensors& tensors, std::size_t from, std::size_t to, std::optional<std::size_t> row) const {
  const auto place = [&](const Tensor& whole) { return row ? whole.row(static_cast<std::int64_t>(*row)) : whole; };
  for (std::size_t i = from; i < to; ++i) {
    const std::string layer = std::to_string(i);
    tensors["past_key_values." + layer + ".key"] = tensors["present." + layer + ".key"] = place(layers_[i].first);
    tensors["past_key_values." + layer + ".value"] = tensors["present." + layer + ".value"] = place(layers_[i].second);
  }
}

Tensor Caches::key(std::int64_t layer, std::size_t row) const {
  return layers_.at(static_cast<std::size_t>(layer)).first.row(static_cast<std::int64_t>(row));
}

void Caches::require(std::int64_t prefix, std::int64_t suffix) const {
  if (prefix <= capacity_[0] && suffix <= capacity_[1]) return;
  const auto text = [](std::int64_t value) { return std::to_string(value); };
  throw Error(Error::Kind::input, "expected cache capacity for " + text(prefix) + " and " + text(suffix) +
                                      " slots, found " + text(capacity_[0]) + " and " + text(capacity_[1]) +
                                      "; reserve more");
}

void Caches::reserve(std::int64_t prefix, std::int64_t suffix) {
  const std::int64_t grown[2] = {device_->capacity("prefix", std::max(prefix, capacity_[0])),
                                 device_->capacity("suffix", std::max(suffix, capacity_[1]))};
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const int side = i < k_ ? 0 : 1;
    if (grown[side] == layers_[i].first.shape[2]) continue;
    std::int64_t used = 0;
    for (const Row& row : rows) used = std::max(used, side == 0 ? row.prefix_length : row.suffix_length);
    Pair larger = pair(grown[side]);
    device_->copy_slots(layers_[i].first, larger.first, used);
    device_->copy_slots(layers_[i].second, larger.second, used);
    layers_[i] = std::move(larger);
    step.reset();  // it is bound to the old memory
  }
  capacity_[0] = grown[0];
  capacity_[1] = grown[1];
}

}  // namespace fastv
