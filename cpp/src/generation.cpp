#include "fastv/generation.hpp"

#include <algorithm>
#include <chrono>

#include "fastv/error.hpp"

namespace fastv {
namespace {

[[noreturn]] void refuse(const std::string& text) { throw Error(Error::Kind::input, text); }

// The members of a Generation are checked before its caches are made of them.
Caches prepared(Chain& chain, const std::vector<Request>& requests, std::vector<Pruning>& prunings,
                const Limits& limits, std::optional<Caches> caches) {
  if (limits.new_tokens < 1) refuse("expected 1 or more new tokens, found " + std::to_string(limits.new_tokens));
  if (requests.empty()) refuse("expected 1 or more requests, found none");
  if (prunings.size() == 1) prunings.resize(requests.size(), prunings.front());
  if (prunings.size() != requests.size())
    refuse("expected one pruning policy per request (" + std::to_string(requests.size()) + "), found " +
           std::to_string(prunings.size()));
  if (!caches) return chain.caches(requests, prunings, limits.new_tokens);
  if (caches->rows.size() != requests.size())
    refuse("expected one request per cache row (" + std::to_string(caches->rows.size()) + "), found " +
           std::to_string(requests.size()));
  std::int64_t prefix = 0, suffix = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const Row& row = caches->rows[i];
    const auto length = static_cast<std::int64_t>(requests[i].input_ids.size());
    chain.check_length(row.position + length, limits.new_tokens);
    prefix = std::max(prefix, row.prefix_length + length);
    suffix = std::max(suffix, row.suffix_length + length - chain.dropped(requests[i], prunings[i]));
  }
  caches->reserve(prefix + limits.new_tokens, suffix + limits.new_tokens);
  return std::move(*caches);
}

}  // namespace

std::int64_t greedy(std::size_t, const float* logits, std::int64_t vocabulary) {
  return std::max_element(logits, logits + vocabulary) - logits;
}

Generation::Generation(Chain& chain, std::vector<Request> requests, std::vector<Pruning> prunings, Limits limits,
                       std::optional<Caches> caches, Pick pick)
    : chain_(chain),
      requests_(std::move(requests)),
      prunings_(std::move(prunings)),
      limits_(std::move(limits)),
      pick_(std::move(pick)),
      caches_(prepared(chain_, requests_, prunings_, limits_, std::move(caches))) {}

void Generation::run(const std::function<void(std::size_t, std::int64_t)>& on_token) {
  if (!tokens_.empty()) refuse("expected a generation to be run once, found a second run; make another");
  const std::vector<std::int64_t>& stop = limits_.stop ? *limits_.stop : chain_.manifest().tokens.eos;
  const std::int64_t vocabulary = chain_.manifest().model.vocab_size;
  const std::size_t rows = requests_.size();
  for (std::size_t row = 0; row < rows; ++row) {
    prefills_.push_back(chain_.prefill(caches_, row, requests_[row], prunings_[row]));
    tokens_.emplace_back();
    emit(row, pick_(row, prefills_.back().logits.data(), vocabulary), on_token);
  }
  for (std::int64_t step = 1; step < limits_.new_tokens; ++step) {
    std::vector<bool> live(rows);
    std::vector<std::int64_t> newest(rows);
    for (std::size_t row = 0; row < rows; ++row) {
      newest[row] = tokens_[row].back();
      live[row] = std::find(stop.begin(), stop.end(), newest[row]) == stop.end();
    }
    if (std::none_of(live.begin(), live.end(), [](bool one) { return one; })) return;
    const auto started = std::chrono::steady_clock::now();
    const Logits logits = chain_.decode(caches_, newest, live);
    decode_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
    ++decode_steps_;
    for (std::size_t row = 0; row < rows; ++row)
      if (live[row]) emit(row, pick_(row, logits.row(static_cast<std::int64_t>(row)), vocabulary), on_token);
  }
}

void Generation::emit(std::size_t row, std::int64_t token,
                      const std::function<void(std::size_t, std::int64_t)>& on_token) {
  tokens_[row].push_back(token);
  if (on_token) on_token(row, token);
}

}  // namespace fastv
