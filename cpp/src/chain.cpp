#include "fastv/chain.hpp"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <set>

#include "fastv/error.hpp"
#include "text.hpp"

namespace fastv {
namespace {

using Indices = std::vector<std::int64_t>;

[[noreturn]] void refuse(const std::string& text) { throw Error(Error::Kind::input, text); }

std::int64_t count_of(const Indices& values) { return static_cast<std::int64_t>(values.size()); }

Indices range(std::int64_t from, std::int64_t count) {
  Indices out(static_cast<std::size_t>(count));
  std::iota(out.begin(), out.end(), from);
  return out;
}

class Clock {
 public:
  explicit Clock(double& seconds) : seconds_(seconds) {}
  ~Clock() { seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count(); }
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

std::string text_of_record(const TensorRecord& record) {
  std::vector<std::string> sizes;
  for (const auto& size : record.shape)
    sizes.push_back(std::holds_alternative<std::string>(size) ? text::quoted(std::get<std::string>(size))
                                                              : std::to_string(std::get<std::int64_t>(size)));
  return "[" + text::joined(sizes) + "]";
}

bool fits(const TensorRecord& record, const Shape& shape) {
  if (record.shape.size() != shape.size()) return false;
  for (std::size_t i = 0; i < shape.size(); ++i)
    if (const auto* size = std::get_if<std::int64_t>(&record.shape[i]); size && *size != shape[i]) return false;
  return true;
}

// M-RoPE: positions of time, row and column.
bool has_three_rows(const TensorRecord& record) {
  const auto* rows = record.shape.empty() ? nullptr : std::get_if<std::int64_t>(&record.shape[0]);
  return record.shape.size() == 3 && rows && *rows == 3;
}

bool has_input(const GraphRecord& graph, const std::string& name) {
  return std::any_of(graph.inputs.begin(), graph.inputs.end(), [&](const auto& input) { return input.name == name; });
}

// Sizes of the groups of image tokens that get a share of their own under a policy's scope.
const Indices& groups(const Request& request, Scope scope) {
  return scope == Scope::frame && !request.frame_sizes.empty() ? request.frame_sizes : request.image_sizes;
}

// A graph that asks for more than this library gives is of a newer exporter: refused here, before anything runs.
void check_contract(const Bundle& bundle) {
  const std::set<std::string> given = {"deepstack_features", "deepstack_rows", "input_ids",    "image_features",
                                       "position_ids",       "slots",          "write_index",  "key",
                                       "query_states",       "hidden_states",  "keep_indices", "candidates"};
  for (const auto& [name, graph] : bundle.manifest().graphs) {
    const std::string where = "graph " + name + " of " + text::path(bundle.path());
    if (name == "vision") {
      for (const TensorRecord& output : graph.outputs)
        if (output.name != "image_features" && output.name != "deepstack_features")
          throw Error(Error::Kind::bundle,
                      "expected known outputs of " + where + ", found " + output.name + "; upgrade this library");
      continue;
    }
    for (const TensorRecord& input : graph.inputs) {
      if (!given.count(input.name) && input.name.rfind("past_key_values.", 0) != 0)
        throw Error(Error::Kind::bundle,
                    "expected known inputs of " + where + ", found " + input.name + "; upgrade this library");
      if (input.name == "position_ids" &&
          (bundle.manifest().vision.mrope ? !has_three_rows(input) : input.shape.size() != 2))
        throw Error(Error::Kind::bundle, "expected position_ids [B, S] or [3, B, S] for " + where + ", found " +
                                             text_of_record(input) + "; upgrade this library");
    }
  }
  for (const char* needed : {"prefix", "suffix"}) static_cast<void>(bundle.graph_path(needed));
}

}  // namespace

Chain::Chain(Bundle bundle, std::shared_ptr<Device> device) : bundle_(std::move(bundle)), device_(std::move(device)) {
  check_contract(bundle_);
  mrope_ = manifest().vision.mrope;
  deepstack_ = manifest().vision.deepstack;
  deepstack_rows_ = has_input(*manifest().graph("suffix"), "deepstack_rows");
  for (const auto& [name, graph] : manifest().graphs) sessions_.emplace(name, device_->session(name));
}

Caches Chain::caches(const std::vector<Request>& requests, const std::vector<Pruning>& prunings,
                     std::int64_t new_tokens) {
  std::int64_t longest = 0, kept = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const std::int64_t length = count_of(requests[i].input_ids);
    check_length(length, new_tokens);
    longest = std::max(longest, length);
    kept = std::max(kept, length - dropped(requests[i], prunings.at(i)));
  }
  return {manifest(), device_, requests.size(), longest + new_tokens, kept + new_tokens};
}

void Chain::check_length(std::int64_t length, std::int64_t new_tokens) const {
  const std::int64_t limit = manifest().model.max_positions;
  if (length + new_tokens > limit)
    refuse("expected prompt and new tokens within the context of " + std::to_string(limit) + ", found " +
           std::to_string(length) + " + " + std::to_string(new_tokens) +
           "; shorten the prompt or ask for fewer tokens");
}

std::int64_t Chain::dropped(const Request& request, const Pruning& pruning) const {
  pruning.check();
  const auto& sizes = request.image_sizes;
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}) -
         pruning.kept_tokens(groups(request, pruning.scope));
}

Prefill Chain::prefill(Caches& caches, std::size_t row, const Request& request, const Pruning& pruning) {
  Row& state = caches.rows.at(row);
  const Indices& ids = request.input_ids;
  const std::int64_t length = count_of(ids);
  Prefill out;
  out.image_positions = image_positions(ids, manifest().tokens.image);
  const std::int64_t images = count_of(out.image_positions);
  out.notes = check(request, pruning, out.image_positions);
  caches.require(state.prefix_length + length, state.suffix_length + length - dropped(request, pruning));
  out.timings.preprocess = request.preprocess_seconds;

  const Indices places = positions(request);
  const std::size_t rows = axes();
  Tensors prefix, suffix, shown;
  {
    const Clock clock(out.timings.vision);
    shown = features(request, images);
  }
  {
    const Clock clock(out.timings.prefix);
    prefix = shown;
    prefix["input_ids"] = device_->upload(ids, {1, length});
    if (manifest().k > 0) {
      Indices moved = places;
      for (std::int64_t& place : moved) place += state.position;
      bind_steps(prefix, moved, state.prefix_length);
      caches.bind_prefix(prefix, row);
    }
    prefix = session("prefix").run(prefix);
  }
  {
    const Clock clock(out.timings.rank_select);
    if (pruning.asked() && images) {
      out.scores = scores(caches, row, prefix, request, pruning, out.image_positions);
      out.keep_indices = select(pruning, length, out.image_positions, groups(request, pruning.scope), out.scores);
    } else {
      out.keep_indices = range(0, length);
    }
  }
  {
    const Clock clock(out.timings.suffix);
    Indices kept;
    for (std::size_t axis = 0; axis < rows; ++axis)
      for (const std::int64_t index : out.keep_indices)
        kept.push_back(state.position +
                       places[axis * static_cast<std::size_t>(length) + static_cast<std::size_t>(index)]);
    suffix["hidden_states"] = prefix.at("hidden_states");
    if (deepstack_rows_) {
      Indices all(static_cast<std::size_t>(length), -1), image_rows;
      for (std::size_t i = 0; i < out.image_positions.size(); ++i)
        all[static_cast<std::size_t>(out.image_positions[i])] = static_cast<std::int64_t>(i);
      for (const std::int64_t index : out.keep_indices) image_rows.push_back(all[static_cast<std::size_t>(index)]);
      suffix["deepstack_features"] = shown.at("deepstack_features");
      suffix["deepstack_rows"] = device_->upload(image_rows, {1, count_of(image_rows)});
    }
    suffix["keep_indices"] = device_->upload(out.keep_indices, {1, count_of(out.keep_indices)});
    bind_steps(suffix, kept, state.suffix_length);
    caches.bind_suffix(suffix, row);
    const Tensor logits = session("suffix").run(suffix).at("logits");
    out.logits.resize(static_cast<std::size_t>(manifest().model.vocab_size));
    if (elements(logits.shape) != manifest().model.vocab_size)
      throw Error(Error::Kind::failure, "expected logits of one token, found " + text_of(logits.shape));
    device_->download(logits, out.logits.data());
  }
  state.position += *std::max_element(places.begin(), places.end()) + 1;
  state.prefix_length += length;
  state.suffix_length += count_of(out.keep_indices);
  out.image_tokens = images;
  out.prompt_tokens = length;
  out.kept_tokens = count_of(out.keep_indices) - (length - images);
  return out;
}

Logits Chain::decode(Caches& caches, const Indices& tokens, const std::vector<bool>& live) {
  const std::size_t count = caches.rows.size();
  if (tokens.size() != count || (!live.empty() && live.size() != count))
    refuse("expected one token for each of " + std::to_string(count) + " rows, found " + std::to_string(tokens.size()));
  for (const std::int64_t token : tokens)
    if (token < 0 || token >= manifest().model.vocab_size)
      refuse("expected token ids in 0.." + std::to_string(manifest().model.vocab_size - 1) + ", found " +
             std::to_string(token));
  Indices positions, prefix, suffix;
  for (const Row& row : caches.rows) {
    positions.push_back(row.position);
    prefix.push_back(row.prefix_length);
    suffix.push_back(row.suffix_length);
  }
  const std::int64_t prefix_slots = *std::max_element(prefix.begin(), prefix.end()) + 1;
  const std::int64_t suffix_slots = *std::max_element(suffix.begin(), suffix.end()) + 1;
  caches.require(prefix_slots, suffix_slots);
  if (!caches.step) caches.step = make_step(caches);
  Step& step = *caches.step;

  device_->write(step.prefix.at("input_ids"), tokens);
  Indices places;
  for (std::size_t axis = 0; axis < axes(); ++axis) places.insert(places.end(), positions.begin(), positions.end());
  device_->write(step.suffix.at("position_ids"), places);
  if (manifest().k > 0) {
    device_->write(step.prefix.at("write_index"), prefix);
    step.prefix.at("slots").shape = {prefix_slots};
  }
  session("prefix").run(step.prefix);
  device_->write(step.suffix.at("write_index"), suffix);
  step.suffix.at("slots").shape = {suffix_slots};
  session("suffix").run(step.suffix);

  for (std::size_t i = 0; i < count; ++i) {
    if (!live.empty() && !live[i]) continue;  // its next step overwrites the same slot
    ++caches.rows[i].position;
    ++caches.rows[i].prefix_length;
    ++caches.rows[i].suffix_length;
  }
  const std::int64_t vocabulary = manifest().model.vocab_size;
  logits_.resize(count * static_cast<std::size_t>(vocabulary));
  device_->download(step.suffix.at("logits"), logits_.data());
  return {logits_.data(), static_cast<std::int64_t>(count), vocabulary};
}

// Scratch of a batch's decode steps: every input and output of both graphs has its place from here on.
Step Chain::make_step(Caches& caches) {
  const ModelRecord& model = manifest().model;
  const auto rows = static_cast<std::int64_t>(caches.rows.size());
  const Dtype dtype = dtype_of_bundle(manifest().dtype);
  Step step;
  const std::int64_t slots = std::max(caches.prefix_capacity(), caches.suffix_capacity());
  step.slots = device_->upload(range(0, slots), {slots});
  step.prefix = no_features();
  if (deepstack_rows_) {
    step.suffix["deepstack_features"] = step.prefix.at("deepstack_features");
    step.suffix["deepstack_rows"] = device_->upload(Indices(caches.rows.size(), -1), {rows, 1});
  }
  step.prefix["input_ids"] = device_->zeros({rows, 1}, Dtype::int64);
  step.prefix["hidden_states"] = step.suffix["hidden_states"] = device_->zeros({rows, 1, model.hidden_size}, dtype);
  step.suffix["position_ids"] = device_->zeros(mrope_ ? Shape{3, rows, 1} : Shape{rows, 1}, Dtype::int64);
  if (manifest().k > 0) {
    step.prefix["position_ids"] = step.suffix["position_ids"];
    step.prefix["write_index"] = device_->zeros({rows}, Dtype::int64);
    step.prefix["slots"] = step.slots;
    step.prefix["query_states"] = device_->zeros({rows, model.heads, 1, model.head_size}, dtype);
    caches.bind_prefix(step.prefix);
  }
  step.suffix["keep_indices"] = device_->zeros({rows, 1}, Dtype::int64);
  step.suffix["write_index"] = device_->zeros({rows}, Dtype::int64);
  step.suffix["slots"] = step.slots;
  step.suffix["logits"] = device_->zeros({rows, 1, model.vocab_size}, Dtype::float32);
  caches.bind_suffix(step.suffix);
  return step;
}

std::vector<std::string> Chain::check(const Request& request, const Pruning& pruning, const Indices& positions) const {
  pruning.check();
  const Indices& ids = request.input_ids;
  if (ids.empty()) refuse("expected a prompt of 1 or more tokens, found an empty one");
  const std::int64_t vocabulary = manifest().model.vocab_size;
  Indices words;
  for (std::size_t i = 0, image = 0; i < ids.size(); ++i) {
    if (image < positions.size() && positions[image] == static_cast<std::int64_t>(i)) {
      ++image;
    } else {
      words.push_back(ids[i]);
    }
  }
  if (!words.empty()) {
    const auto [least, most] = std::minmax_element(words.begin(), words.end());
    if (*least < 0 || *most >= vocabulary)
      refuse("expected token ids in 0.." + std::to_string(vocabulary - 1) + ", found " + std::to_string(*least) +
             " to " + std::to_string(*most));
  }
  const auto total = [](const Indices& sizes) { return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}); };
  const Indices& sizes = groups(request, pruning.scope);
  if (total(request.image_sizes) != count_of(positions) || total(sizes) != count_of(positions) ||
      std::any_of(sizes.begin(), sizes.end(), [](auto size) { return size < 0; }))
    refuse("expected as many image placeholders as image tokens, found " + std::to_string(positions.size()) +
           " placeholders for " + std::to_string(sizes.size()) + " images of " + text::list(sizes) + " tokens");
  if (pruning.asked() && !is_free_ranking(pruning.ranking)) check_ranking(pruning.ranking);
  std::vector<std::string> notes;
  if (pruning.asked() && positions.empty()) {
    if (pruning.required) refuse("expected image tokens to prune, found a text-only prompt (pruning is required)");
    notes.emplace_back("nothing was pruned: the prompt has no image tokens");
  }
  if (!positions.empty() && positions.back() == count_of(ids) - 1)
    notes.emplace_back("the last prompt token is an image token, so the ranking's query is one: put text after it");
  return notes;
}

void Chain::check_ranking(const std::string& ranking) const {
  std::vector<std::string> offered = manifest().rankings;
  if (std::find(offered.begin(), offered.end(), ranking) != offered.end()) return;
  if (manifest().k == 0)
    refuse(
        "expected a ranking that needs no attention (random, uniform, diversity, external) in a bundle cut at K=0, "
        "found " +
        text::quoted(ranking));
  offered.insert(offered.end(), {"random", "uniform", "diversity", "external"});
  refuse("expected a ranking that was exported (" + text::joined(offered) + "), found " + text::quoted(ranking) +
         "; export with --rankings");
}

// Position ids counted from the request's start: [N], or [3, N] with M-RoPE.
Indices Chain::positions(const Request& request) const {
  const std::int64_t length = count_of(request.input_ids);
  if (request.position_ids.empty()) {
    if (mrope_ && !request.image_sizes.empty())
      refuse("expected position_ids [3, N] with the images of an M-RoPE model, found none");
    Indices out;
    for (std::size_t axis = 0; axis < axes(); ++axis)
      for (std::int64_t i = 0; i < length; ++i) out.push_back(i);
    return out;
  }
  if (request.position_ids.size() != axes() * static_cast<std::size_t>(length))
    refuse("expected position_ids of shape " + (mrope_ ? text_of({3, length}) : text_of({length})) + ", found " +
           std::to_string(request.position_ids.size()) + " of them");
  return request.position_ids;
}

Tensors Chain::no_features() {
  const Dtype dtype = dtype_of_bundle(manifest().dtype);
  Tensors nothing;
  nothing["image_features"] = device_->empty({0, manifest().model.hidden_size}, dtype);
  if (deepstack_) nothing["deepstack_features"] = device_->empty({deepstack_, 0, manifest().model.hidden_size}, dtype);
  return nothing;
}

Tensors Chain::features(const Request& request, std::int64_t tokens) {
  if (!request.image_features && request.vision_inputs.empty()) return no_features();
  Tensors features;
  if (request.image_features) {
    if (deepstack_) refuse("expected vision_inputs for a model that adds vision features twice, found image_features");
    const Tensor& given = *request.image_features;
    if (given.shape.size() != 2 || given.shape[1] != manifest().model.hidden_size)
      refuse("expected image_features of shape [M, " + std::to_string(manifest().model.hidden_size) + "], found " +
             text_of(given.shape));
    features["image_features"] = device_->upload(converted(given, dtype_of_bundle(manifest().dtype)));
  } else {
    const GraphRecord* graph = manifest().graph("vision");
    if (!graph) static_cast<void>(bundle_.graph_path("vision"));  // says that there is none
    Tensors inputs;
    for (const TensorRecord& record : graph->inputs) {
      const auto given = request.vision_inputs.find(record.name);
      if (given == request.vision_inputs.end()) {
        std::vector<std::string> names;
        for (const auto& [name, tensor] : request.vision_inputs) names.push_back(text::quoted(name));
        refuse("expected " + record.name + " for the vision graph, found [" + text::joined(names) + "]");
      }
      if (!fits(record, given->second.shape))
        refuse("expected " + record.name + " of shape " + text_of_record(record) + ", found " +
               text_of(given->second.shape));
      inputs[record.name] = device_->upload(converted(given->second, dtype_named(record.dtype)));
    }
    features = session("vision").run(inputs);
  }
  const std::int64_t found = features.at("image_features").shape[0];
  if (found != tokens)
    refuse("expected one image feature per placeholder, found " + std::to_string(found) + " features for " +
           std::to_string(tokens));
  return features;
}

// Inputs that say where one row's tokens stand: their positions [S] or [3, S], and their slots from `write` on.
void Chain::bind_steps(Tensors& tensors, const Indices& positions, std::int64_t write) {
  const std::int64_t count = count_of(positions) / static_cast<std::int64_t>(axes());
  tensors["position_ids"] = device_->upload(positions, mrope_ ? Shape{3, 1, count} : Shape{1, count});
  tensors["slots"] = device_->upload(range(0, write + count), {write + count});
  tensors["write_index"] = device_->upload(Indices{write}, {1});
}

std::optional<std::vector<float>> Chain::scores(Caches& caches, std::size_t row, const Tensors& prefix,
                                                const Request& request, const Pruning& pruning,
                                                const Indices& positions) {
  const std::int64_t images = count_of(positions);
  if (pruning.ranking == "external") {
    if (!request.scores || count_of(positions) != static_cast<std::int64_t>(request.scores->size()))
      refuse("expected external scores of shape [" + std::to_string(images) + "], found " +
             (request.scores ? "[" + std::to_string(request.scores->size()) + "]" : "none"));
    return request.scores;
  }
  if (pruning.ranking == "random") return random_scores(images, pruning.seed);
  if (pruning.ranking == "uniform") return std::nullopt;
  if (pruning.ranking == "diversity")
    refuse(
        "expected a ranking that this library computes, found 'diversity'; rank in Python, or give scores of your own");
  const Row& state = caches.rows[row];
  const std::int64_t slots = state.prefix_length + count_of(request.input_ids);
  Indices candidates(static_cast<std::size_t>(slots));
  for (const std::int64_t position : positions)
    candidates[static_cast<std::size_t>(state.prefix_length + position)] = 1;
  // A rank graph gets the inputs that it names.
  Tensors tensors;
  for (const TensorRecord& input : manifest().graph("rank-" + pruning.ranking)->inputs) {
    const std::string& name = input.name;
    if (name == "key") tensors[name] = caches.key(manifest().k - 1, row);
    if (name == "slots") tensors[name] = device_->upload(range(0, slots), {slots});
    if (name == "write_index") tensors[name] = device_->upload(Indices{state.prefix_length}, {1});
    if (name == "candidates") tensors[name] = device_->upload(candidates, {1, slots});
    if (name == "query_states" || name == "hidden_states") tensors[name] = prefix.at(name);
  }
  const Tensor found = session("rank-" + pruning.ranking).run(tensors).at("scores");
  if (elements(found.shape) != slots)
    throw Error(Error::Kind::failure, "expected one score per slot, found " + text_of(found.shape));
  std::vector<float> all(static_cast<std::size_t>(slots)), out;
  device_->download(found, all.data());
  for (const std::int64_t position : positions)
    out.push_back(all[static_cast<std::size_t>(state.prefix_length + position)]);
  return out;
}

}  // namespace fastv
