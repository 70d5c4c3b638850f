// The KV caches of a batch of requests: N entries in layers before K, n in layers from K on.
#pragma once

#include <optional>
#include <utility>

#include "fastv/bundle.hpp"
#include "fastv/device.hpp"

namespace fastv {

// Where one request stands: the position of its next token in the unpruned sequence, and the filled slots in every
// layer before K and from K on.
struct Row {
  std::int64_t position = 0;
  std::int64_t prefix_length = 0;
  std::int64_t suffix_length = 0;
};

// What one decode step of a batch reads and writes, caches included. Made once per batch, so that sessions find
// everything where they bound it the step before. `slots` is int64 [C], 0, 1, ...
struct Step {
  Tensors prefix, suffix;
  Tensor slots;
};

// Key and value buffers [B, G, C, D] of every layer, and the rows' counters. The capacity C is the rows' own need,
// never the model's context: layers before K and from K on differ, which is where FastV's memory saving comes from.
class Caches {
 public:
  Caches(const Manifest& manifest, std::shared_ptr<Device> device, std::size_t rows, std::int64_t prefix,
         std::int64_t suffix);

  std::vector<Row> rows;
  std::optional<Step> step;  // of decode; made by the chain

  std::int64_t prefix_capacity() const { return capacity_[0]; }
  std::int64_t suffix_capacity() const { return capacity_[1]; }
  std::int64_t bytes() const;  // allocated for keys and values

  // Add the bindings of the layers before K (or from K on): each past and its present on the same memory.
  // Without a row, of all rows.
  void bind_prefix(Tensors& tensors, std::optional<std::size_t> row = std::nullopt) const;
  void bind_suffix(Tensors& tensors, std::optional<std::size_t> row = std::nullopt) const;

  Tensor key(std::int64_t layer, std::size_t row) const;  // [1, G, C, D]

  // Throws Error (input) if a write would land outside: backends drop such writes silently.
  void require(std::int64_t prefix, std::int64_t suffix) const;

  // Grow, keeping what is written, so that a later turn fits.
  void reserve(std::int64_t prefix, std::int64_t suffix);

 private:
  using Pair = std::pair<Tensor, Tensor>;
  Pair pair(std::int64_t capacity) const;
  void bind(Tensors& tensors, std::size_t from, std::size_t to, std::optional<std::size_t> row) const;

  std::shared_ptr<Device> device_;
  std::size_t k_;
  std::int64_t heads_, head_size_;
  Dtype dtype_;
  std::int64_t capacity_[2];
  std::vector<Pair> layers_;
};

}  // namespace fastv
