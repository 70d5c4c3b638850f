// The generation loop over a batch of requests: prefill one by one, then decode together.
#pragma once

#include "fastv/chain.hpp"

namespace fastv {

// When a row ends: after `new_tokens`, or at a stop token. Without `stop`, at the model's own; empty never stops early.
struct Limits {
  std::int64_t new_tokens = 128;
  std::optional<std::vector<std::int64_t>> stop;
};

// Chooses a row's next token from its logits [V].
using Pick = std::function<std::int64_t(std::size_t row, const float* logits, std::int64_t vocabulary)>;

// The highest logit; the lowest id wins a tie.
std::int64_t greedy(std::size_t row, const float* logits, std::int64_t vocabulary);

// One batch on its way. Holds a reference to the chain, which has to outlive it.
class Generation {
 public:
  // Checks lengths and allocates caches, or grows the ones of an earlier turn with as many rows.
  // `prunings`: one for all rows, or one per row. Throws Error (input) if counts do not match or prompts are too long.
  Generation(Chain& chain, std::vector<Request> requests, std::vector<Pruning> prunings, Limits limits = {},
             std::optional<Caches> caches = std::nullopt, Pick pick = greedy);

  // Run to the end; `on_token` is called with (row, token) as they come.
  void run(const std::function<void(std::size_t row, std::int64_t token)>& on_token = {});

  const std::vector<Prefill>& prefills() const { return prefills_; }
  const std::vector<std::vector<std::int64_t>>& tokens() const { return tokens_; }  // the stop token included
  double decode_seconds() const { return decode_seconds_; }
  std::int64_t decode_steps() const { return decode_steps_; }
  std::int64_t kv_bytes() const { return caches_.bytes(); }

  // The caches, for a later turn; the generation has none after that. The last token of an answer was generated but
  // not yet read by the model: begin the next turn's ids with it.
  Caches take_caches() { return std::move(caches_); }

 private:
  void emit(std::size_t row, std::int64_t token, const std::function<void(std::size_t, std::int64_t)>& on_token);

  Chain& chain_;
  std::vector<Request> requests_;
  std::vector<Pruning> prunings_;
  Limits limits_;
  Pick pick_;
  Caches caches_;
  std::vector<Prefill> prefills_;
  std::vector<std::vector<std::int64_t>> tokens_;
  double decode_seconds_ = 0.0;
  std::int64_t decode_steps_ = 0;
};

}  // namespace fastv
