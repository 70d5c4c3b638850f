// The FastV policy as plain values: how many image tokens to keep, and which. No backend, no memory, no state.
// Source of the rules: FastV (arXiv 2403.06764, section 4.1) and the authors' implementation.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fastv {

// "all" ranks the tokens of all images in one pool, "image" gives every image its own share, "frame" every frame of a
// clip.
enum class Scope { all, image, frame };

// How one request is pruned.
struct Pruning {
  std::optional<double> ratio;         // R, the share of image tokens to remove, in [0, 1]
  std::optional<std::int64_t> keep;    // an absolute number to keep instead; more than there are keeps all
  std::string ranking = "last-query";  // last-query, received (graphs of the bundle), random, uniform, external
  Scope scope = Scope::all;
  std::uint64_t seed = 0;  // of the random ranking
  bool required = false;   // if true, a request in which nothing can be pruned is an error instead of a note

  static Pruning by_ratio(double ratio, std::string ranking = "last-query");
  static Pruning by_keep(std::int64_t keep, std::string ranking = "last-query");

  // Throws Error (input) where a value is out of range. Everything that takes a Pruning calls it first.
  void check() const;

  // Whether this policy can remove anything at all.
  bool asked() const { return keep.has_value() || ratio.value_or(0.0) != 0.0; }

  // Image tokens kept out of `tokens`: round(M * (1 - R)), halves to the even number.
  std::int64_t keep_count(std::int64_t tokens) const;

  // Image tokens that live on, out of images of these sizes, under this policy's scope.
  std::int64_t kept_tokens(const std::vector<std::int64_t>& image_sizes) const;

  // Kept tokens per image, or per frame, for the scope of that name. An absolute keep is shared out in proportion to
  // size.
  std::vector<std::int64_t> quotas(const std::vector<std::int64_t>& image_sizes) const;
};

// Whether a ranking needs no attention, so that every bundle offers it.
bool is_free_ranking(const std::string& ranking);

// Ascending positions of the image tokens in one prompt, found from their ids, never from an offset.
std::vector<std::int64_t> image_positions(const std::vector<std::int64_t>& input_ids,
                                          const std::vector<std::int64_t>& image_token_ids);

// Indices of the `count` highest scores in ascending order; the lowest index wins a tie. Throws on NaN.
std::vector<std::int64_t> top(const float* scores, std::int64_t tokens, std::int64_t count);

// Scores in [0, 1) from SplitMix64 of (seed, index): the upper 24 bits of each output, divided by 2^24.
std::vector<float> random_scores(std::int64_t tokens, std::uint64_t seed);

// `count` evenly spread indices out of `tokens`: the middle of each of `count` equal parts.
std::vector<std::int64_t> uniform_indices(std::int64_t tokens, std::int64_t count);

// Choose the tokens of one prompt that live on after layer K.
//
//   length       N, tokens of this prompt (or of this turn)
//   positions    ascending positions of the image tokens, [M], each below N
//   image_sizes  image tokens of each image (of each frame for Scope::frame), in order; they sum to M
//   scores       one per image token, [M]; not read for the rankings random and uniform
//
// Returns keep_indices, ascending, [N - M + kept]: text is never dropped and the order is kept, so they are also the
// kept tokens' original positions. Throws Error (input) where sizes do not fit, or scores are missing or NaN.
std::vector<std::int64_t> select(const Pruning& pruning, std::int64_t length,
                                 const std::vector<std::int64_t>& positions,
                                 const std::vector<std::int64_t>& image_sizes,
                                 const std::optional<std::vector<float>>& scores = std::nullopt);

}  // namespace fastv
