#include "fastv/pruning.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "fastv/error.hpp"
#include "text.hpp"

namespace fastv {
namespace {

using Indices = std::vector<std::int64_t>;

const std::vector<std::string> kRankings = {"last-query", "received", "last-query-norope", "key-norm", "dart",
                                            "random",     "uniform",  "diversity",         "external"};

[[noreturn]] void refuse(const std::string& text) { throw Error(Error::Kind::input, text); }

std::int64_t sum(const Indices& values) { return std::accumulate(values.begin(), values.end(), std::int64_t{0}); }

}  // namespace

Pruning Pruning::by_ratio(double ratio, std::string ranking) {
  Pruning pruning;
  pruning.ratio = ratio;
  pruning.ranking = std::move(ranking);
  pruning.check();
  return pruning;
}

Pruning Pruning::by_keep(std::int64_t keep, std::string ranking) {
  Pruning pruning;
  pruning.keep = keep;
  pruning.ranking = std::move(ranking);
  pruning.check();
  return pruning;
}

void Pruning::check() const {
  if (ratio && keep) refuse("expected a pruning ratio or a keep count, found both; give one of them");
  if (ratio && !(*ratio >= 0.0 && *ratio <= 1.0))  // NaN fails this too
    refuse("expected a pruning ratio in [0, 1], found " + text::number(*ratio) +
           "; it is the share of image tokens to remove");
  if (keep && *keep < 0) refuse("expected a keep count of 0 or more, found " + std::to_string(*keep));
  if (std::find(kRankings.begin(), kRankings.end(), ranking) == kRankings.end())
    refuse("expected a ranking of " + text::joined(kRankings) + ", found " + text::quoted(ranking));
}

std::int64_t Pruning::keep_count(std::int64_t tokens) const {
  if (keep) return std::min(*keep, tokens);
  return static_cast<std::int64_t>(std::nearbyint(static_cast<double>(tokens) * (1.0 - ratio.value_or(0.0))));
}

std::int64_t Pruning::kept_tokens(const Indices& image_sizes) const {
  return scope == Scope::all ? keep_count(sum(image_sizes)) : sum(quotas(image_sizes));
}

Indices Pruning::quotas(const Indices& image_sizes) const {
  Indices shares(image_sizes.size());
  if (!keep) {
    std::transform(image_sizes.begin(), image_sizes.end(), shares.begin(), [&](auto size) { return keep_count(size); });
    return shares;
  }
  const std::int64_t total = sum(image_sizes), kept = keep_count(total);
  Indices remainders(image_sizes.size()), order(image_sizes.size());
  for (std::size_t i = 0; i < image_sizes.size() && total; ++i) {
    shares[i] = kept * image_sizes[i] / total;
    remainders[i] = kept * image_sizes[i] % total;
  }
  // Largest remainder first; the earlier image wins a tie.
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) {
    return remainders[static_cast<std::size_t>(a)] > remainders[static_cast<std::size_t>(b)];
  });
  const std::int64_t left = kept - sum(shares);
  for (std::int64_t i = 0; i < left; ++i) ++shares[static_cast<std::size_t>(order[static_cast<std::size_t>(i)])];
  return shares;
}

bool is_free_ranking(const std::string& ranking) {
  return ranking == "random" || ranking == "uniform" || ranking == "diversity" || ranking == "external";
}

Indices image_positions(const Indices& input_ids, const Indices& image_token_ids) {
  Indices positions;
  for (std::size_t i = 0; i < input_ids.size(); ++i)
    if (std::find(image_token_ids.begin(), image_token_ids.end(), input_ids[i]) != image_token_ids.end())
      positions.push_back(static_cast<std::int64_t>(i));
  return positions;
}

Indices top(const float* scores, std::int64_t tokens, std::int64_t count) {
  const auto missing = std::count_if(scores, scores + tokens, [](float score) { return std::isnan(score); });
  if (missing) refuse("expected ranking scores that are numbers, found " + std::to_string(missing) + " NaN");
  Indices order(static_cast<std::size_t>(tokens));
  std::iota(order.begin(), order.end(), 0);
  const auto better = [scores](std::int64_t a, std::int64_t b) {
    return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
  };
  const auto cut = order.begin() + std::clamp(count, std::int64_t{0}, tokens);
  if (cut != order.end()) std::nth_element(order.begin(), cut, order.end(), better);
  order.erase(cut, order.end());
  std::sort(order.begin(), order.end());
  return order;
}

std::vector<float> random_scores(std::int64_t tokens, std::uint64_t seed) {
  std::vector<float> scores(static_cast<std::size_t>(tokens));
  for (float& score : scores) {
    std::uint64_t z = (seed += 0x9E3779B97F4A7C15ULL);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    z = z ^ (z >> 31);
    score = static_cast<float>(z >> 40) / 16777216.0F;  // 24 bits: exact in float
  }
  return scores;
}

Indices uniform_indices(std::int64_t tokens, std::int64_t count) {
  Indices chosen(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) chosen[static_cast<std::size_t>(i)] = (2 * i + 1) * tokens / (2 * count);
  return chosen;
}

Indices select(const Pruning& pruning, std::int64_t length, const Indices& positions, const Indices& image_sizes,
               const std::optional<std::vector<float>>& scores) {
  pruning.check();
  const auto tokens = static_cast<std::int64_t>(positions.size());
  const bool negative = std::any_of(image_sizes.begin(), image_sizes.end(), [](auto size) { return size < 0; });
  if (negative || sum(image_sizes) != tokens)
    refuse("expected image sizes that sum to " + std::to_string(tokens) + " tokens, found " + text::list(image_sizes));
  if (!positions.empty() && (positions.front() < 0 || positions.back() >= length))
    refuse("expected image positions within " + std::to_string(length) + " tokens, found " + text::list(positions));

  const bool uniform = pruning.ranking == "uniform";
  std::vector<float> drawn;
  if (pruning.ranking == "random") drawn = random_scores(tokens, pruning.seed);
  if (!uniform && pruning.ranking != "random") {
    if (!scores)
      refuse("expected one score per image token for ranking " + text::quoted(pruning.ranking) + ", found none");
    if (static_cast<std::int64_t>(scores->size()) != tokens)
      refuse("expected scores of shape [" + std::to_string(tokens) + "], one per image token, found [" +
             std::to_string(scores->size()) + "]");
  }
  const float* values = pruning.ranking == "random" ? drawn.data() : (scores ? scores->data() : nullptr);

  const bool whole = pruning.scope == Scope::all;
  const Indices pools = whole ? Indices{tokens} : image_sizes;
  const Indices counts = whole ? Indices{pruning.keep_count(tokens)} : pruning.quotas(image_sizes);

  std::vector<bool> kept(static_cast<std::size_t>(length), true);
  for (const std::int64_t spot : positions) kept[static_cast<std::size_t>(spot)] = false;
  std::int64_t start = 0;
  for (std::size_t pool = 0; pool < pools.size(); ++pool) {
    const Indices chosen =
        uniform ? uniform_indices(pools[pool], counts[pool]) : top(values + start, pools[pool], counts[pool]);
    for (const std::int64_t index : chosen)
      kept[static_cast<std::size_t>(positions[static_cast<std::size_t>(start + index)])] = true;
    start += pools[pool];
  }
  Indices out;
  for (std::int64_t i = 0; i < length; ++i)
    if (kept[static_cast<std::size_t>(i)]) out.push_back(i);
  return out;
}

}  // namespace fastv
