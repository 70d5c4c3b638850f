// The core: token ids and pixel values in, logits out. Prefill, pruning and decode over one device.
//
//   vision -> prefix -> rank -> select -> suffix -> token -> prefix -> ...
#pragma once

#include "fastv/caches.hpp"
#include "fastv/pruning.hpp"

namespace fastv {

// One prompt, or one later turn of a conversation.
struct Request {
  std::vector<std::int64_t> input_ids;    // [N], image tokens expanded
  Tensors vision_inputs;                  // inputs of the vision graph by name; on the host, or on the device
  std::vector<std::int64_t> image_sizes;  // image tokens of each image, in order
  std::vector<std::int64_t> frame_sizes;  // image tokens of each frame, where an image is a clip; empty: each is one
  std::vector<std::int64_t>
      position_ids;  // [3, N] of an M-RoPE model with images, from this prompt's start; else empty
  std::optional<std::vector<float>> scores;  // one per image token, for the ranking "external"
  std::optional<Tensor> image_features;      // [M, d], from a vision encoder of your own: the vision graph is not run
  double preprocess_seconds = 0.0;           // what making this request took; copied into the timings
};

// Seconds by part, each measured once it has finished on the device.
struct Timings {
  double preprocess = 0.0, vision = 0.0, prefix = 0.0, rank_select = 0.0, suffix = 0.0;
  double total() const { return preprocess + vision + prefix + rank_select + suffix; }  // to first token
};

// What one prefill did.
struct Prefill {
  std::vector<float> logits;                  // of the last token, [V]
  std::int64_t image_tokens = 0;              // M of this turn
  std::int64_t kept_tokens = 0;               // image tokens that lived on
  std::int64_t prompt_tokens = 0;             // N of this turn, before pruning
  std::vector<std::int64_t> keep_indices;     // kept positions within this turn, ascending
  std::vector<std::int64_t> image_positions;  // of the image tokens within this turn
  std::optional<std::vector<float>> scores;   // one per image token, if the ranking has any
  Timings timings;
  std::vector<std::string> notes;  // what the user should know
};

// Logits of one decode step, float [rows, vocabulary], on the host. Valid until the next step of the same caches.
struct Logits {
  const float* data;
  std::int64_t rows, vocabulary;
  const float* row(std::int64_t index) const { return data + index * vocabulary; }
};

// The sessions of a bundle, chained. What a request leaves behind is in its `Caches`, so one chain serves any number
// of conversations, one call at a time: a chain, its device and all caches made by it belong to one thread at a time.
class Chain {
 public:
  // Loads every graph of the bundle. Throws Error where one cannot run on the device.
  Chain(Bundle bundle, std::shared_ptr<Device> device);

  const Bundle& bundle() const { return bundle_; }
  const Manifest& manifest() const { return bundle_.manifest(); }
  Device& device() { return *device_; }

  // Caches for a batch, sized to prompt + new tokens, pruned layers to what is kept.
  // Throws Error (input) if a prompt and its new tokens are longer than the model's context.
  Caches caches(const std::vector<Request>& requests, const std::vector<Pruning>& prunings, std::int64_t new_tokens);

  // Throws Error (input) if `length` + `new_tokens` exceeds the context.
  void check_length(std::int64_t length, std::int64_t new_tokens) const;

  // How many tokens of a request will not live on after layer K.
  std::int64_t dropped(const Request& request, const Pruning& pruning) const;

  // Run one prompt, or a later turn, of one row through the chain. Throws Error (input) if images and placeholders do
  // not match, the ranking is not in the bundle, pruning was required and is impossible, or the caches are too small.
  Prefill prefill(Caches& caches, std::size_t row, const Request& request, const Pruning& pruning);

  // One decode step of every row with the rows' newest tokens. A row that is not live is computed with the others but
  // does not advance. Empty `live`: all rows go on.
  Logits decode(Caches& caches, const std::vector<std::int64_t>& tokens, const std::vector<bool>& live = {});

 private:
  std::vector<std::string> check(const Request& request, const Pruning& pruning,
                                 const std::vector<std::int64_t>& positions) const;
  void check_ranking(const std::string& ranking) const;
  std::vector<std::int64_t> positions(const Request& request) const;
  Tensors no_features();
  Tensors features(const Request& request, std::int64_t tokens);
  std::optional<std::vector<float>> scores(Caches& caches, std::size_t row, const Tensors& prefix,
                                           const Request& request, const Pruning& pruning,
                                           const std::vector<std::int64_t>& positions);
  void bind_steps(Tensors& tensors, const std::vector<std::int64_t>& positions, std::int64_t write);
  std::size_t axes() const { return mrope_ ? 3 : 1; }  // of position ids
  Step make_step(Caches& caches);
  Session& session(const std::string& graph) { return *sessions_.at(graph); }

  Bundle bundle_;
  std::shared_ptr<Device> device_;
  std::map<std::string, std::unique_ptr<Session>> sessions_;
  std::vector<float> logits_;
  bool mrope_;              // position ids have three rows, of time, row and column
  std::int64_t deepstack_;  // decoder layers after which vision features are added once more
  bool deepstack_rows_;     // whether some of them are behind the cut
};

}  // namespace fastv
