#include "engine.hpp"

#include <algorithm>
#include <set>

#include "fastv/error.hpp"
#include "text.hpp"

namespace fastv {
namespace {

constexpr std::uintptr_t kAlignment = 256;

[[noreturn]] void fail(const std::string& text) { throw Error(Error::Kind::failure, text); }

const Tensor& place_of(const std::vector<std::pair<std::string, Tensor>>& places, const std::string& name) {
  for (const auto& [found, tensor] : places)
    if (found == name) return tensor;
  fail("expected a place for " + name + ", found none");
}

}  // namespace

EngineSession::EngineSession(std::string graph, EngineRecord record, std::unique_ptr<Engine> engine,
                             std::shared_ptr<CudaMemory> memory, Tensor slots, bool cuda_graphs)
    : graph_(std::move(graph)),
      record_(std::move(record)),
      engine_(std::move(engine)),
      memory_(std::move(memory)),
      slots_(std::move(slots)) {
  check_engine();
  // A context of its own for each profile: a captured graph must not see the profile change.
  for (std::size_t i = 0; i < record_.profiles.size(); ++i) {
    contexts_.push_back(engine_->context(i));
    if (!contexts_.back())
      fail("expected GPU memory for the activations of " + graph_ + ", found: " + engine_->last_error());
  }
  memory_->synchronize();
  if (!cuda_graphs) no_graphs_because_ = "they are switched off";
}

// Compare the engine with its record, which everything else trusts.
void EngineSession::check_engine() const {
  const std::vector<std::string> names = engine_->names();
  std::set<std::string> wanted;
  for (const IoRecord& io : record_.inputs) wanted.insert(io.name);
  for (const IoRecord& io : record_.outputs) wanted.insert(io.name);
  bool same = std::set<std::string>(names.begin(), names.end()) == wanted && !record_.profiles.empty() &&
              engine_->profiles() == record_.profiles.size();
  for (const std::string& name : names) same = same && !engine_->on_host(name);
  for (const IoRecord& io : record_.outputs) {
    const std::optional<std::string> found = engine_->alias(io.name);
    const auto listed = record_.aliases.find(io.name);
    same = same && (!found || *found == (listed == record_.aliases.end() ? "" : listed->second));
  }
  if (!same) fail("expected the plan of " + graph_ + " as engine.json describes it, found another; build again");
}

Tensors EngineSession::run(const Tensors& tensors) {
  Places bound = inputs(tensors);
  const std::size_t profile = profile_for(bound);
  const ProfileRecord& limits = record_.profiles[profile];
  const bool placed = std::all_of(record_.outputs.begin(), record_.outputs.end(),
                                  [&](const IoRecord& io) { return tensors.count(io.name) > 0; });
  Tensors out;
  if (limits.name != "decode" || !placed) {
    for (auto& [name, tensor] : bind(profile, bound, tensors)) out[name] = tensor;
    enqueue(profile);
    memory_->synchronize();  // so that whoever measures a prefill measures all of it
    return out;
  }
  for (auto& [name, tensor] : bound) {
    if (name != "slots") continue;
    const RangeRecord* range = limits.range(name);
    const std::int64_t rounded = (tensor.shape[0] + kBucket - 1) / kBucket * kBucket;
    tensor = slots_;
    tensor.shape = {range ? std::min(rounded, range->max[0]) : rounded};
  }
  decode(profile, bound, tensors);
  for (const IoRecord& io : record_.outputs) out[io.name] = tensors.at(io.name);
  return out;
}

// A step whose every tensor has a place: the first of its kind runs plainly, the second is captured as a CUDA graph,
// later ones launch it.
void EngineSession::decode(std::size_t profile, const Places& bound, const Tensors& tensors) {
  std::vector<std::pair<void*, Shape>> places;
  for (const auto& [name, tensor] : bound) places.emplace_back(tensor.data, tensor.shape);
  for (const IoRecord& io : record_.outputs) places.emplace_back(tensors.at(io.name).data, tensors.at(io.name).shape);
  const auto known = std::find_if(graphs_.begin(), graphs_.end(),
                                  [&](const Captured& one) { return one.profile == profile && one.places == places; });
  if (known != graphs_.end()) {
    graphs_.splice(graphs_.begin(), graphs_, known);
    if (known->graph) return known->graph->launch();
  }
  bind(profile, bound, tensors);
  if (!no_graphs_because_) {
    if (known == graphs_.end()) {
      graphs_.push_front({profile, std::move(places), nullptr});
      if (graphs_.size() > kMaxGraphs) {
        memory_->synchronize();  // the oldest may still run
        graphs_.pop_back();
      }
    } else if ((known->graph = capture(profile))) {
      return known->graph->launch();
    }
  }
  enqueue(profile);
}

EngineSession::Places EngineSession::inputs(const Tensors& tensors) const {
  Places bound;
  for (const IoRecord& io : record_.inputs) {
    const auto found = tensors.find(io.name);
    if (found == tensors.end()) fail("expected " + io.name + " for " + graph_ + ", found none");
    if (found->second.dtype != dtype_named(io.dtype))
      throw Error(Error::Kind::input, "expected " + io.name + " as " + io.dtype + " for " + graph_ + ", found " +
                                          name_of(found->second.dtype));
    if (found->second.place != Place::device) fail("expected " + io.name + " on the GPU, found it on the host");
    bound.emplace_back(io.name, found->second);
  }
  return bound;
}

// The last profile that admits the shapes: decode before prefill.
std::size_t EngineSession::profile_for(const Places& bound) const {
  std::map<std::string, Shape> shapes;
  for (const auto& [name, tensor] : bound) shapes[name] = tensor.shape;
  const auto& profiles = record_.profiles;
  for (std::size_t i = profiles.size(); i-- > 0;)
    if (profiles[i].refusals(shapes).empty()) return i;
  const auto nearest = std::min_element(profiles.begin(), profiles.end(), [&](const auto& a, const auto& b) {
    return a.excess(shapes) < b.excess(shapes);
  });
  std::vector<std::string> found = nearest->refusals(shapes);
  found.resize(std::min<std::size_t>(found.size(), 3));
  throw Error(Error::Kind::input, "expected a request within the " + graph_ + " engine's " + nearest->name +
                                      " profile, found that " + text::joined(found, "; ") +
                                      "; build with larger --max-prompt, --max-batch, --max-images or --kept");
}

// Set every shape and address of a context; returns the outputs.
EngineSession::Places EngineSession::bind(std::size_t profile, const Places& bound, const Tensors& tensors) {
  EngineContext& context = *contexts_[profile];
  for (const auto& [name, tensor] : bound)
    if (!context.set_input_shape(name, tensor.shape))
      fail("expected " + graph_ + " to take " + name + " of " + text_of(tensor.shape) + ", found that it refuses");
  if (const std::vector<std::string> missing = context.infer_shapes(); !missing.empty())
    fail("expected every shape of " + graph_ + " to be known, found " + text::joined(missing) + " unknown");
  Places outputs, places = bound;
  for (const IoRecord& io : record_.outputs) outputs.emplace_back(io.name, output(profile, io, tensors));
  places.insert(places.end(), outputs.begin(), outputs.end());
  for (const auto& [name, source] : record_.aliases)
    if (place_of(places, name).data != place_of(places, source).data)
      fail("expected " + name + " in the memory of " + source + ", found another place");
  for (const auto& [name, tensor] : places) {
    if (reinterpret_cast<std::uintptr_t>(tensor.data) % kAlignment)
      fail("expected " + name + " at a multiple of " + std::to_string(kAlignment) + " bytes, found another address");
    if (!context.set_address(name, tensor.data)) fail("expected " + graph_ + " to take a place for " + name);
  }
  return outputs;
}

// The caller's place for an output, or this session's own, which only ever grows.
Tensor EngineSession::output(std::size_t profile, const IoRecord& record, const Tensors& tensors) {
  Tensor place;
  place.shape = contexts_[profile]->shape(record.name);
  place.dtype = dtype_named(record.dtype);
  place.place = Place::device;
  if (const auto given = tensors.find(record.name); given != tensors.end()) {
    if (given->second.shape != place.shape || given->second.dtype != place.dtype)
      fail("expected a place of " + record.dtype + text_of(place.shape) + " for " + record.name + ", found " +
           text_of(given->second.shape));
    return given->second;
  }
  auto& [block, bytes] = own_[record.name];
  if (!block || bytes < place.bytes()) {
    block = memory_->allocate(static_cast<std::size_t>(place.bytes()));
    bytes = place.bytes();
  }
  place.data = block.get();
  place.owner = block;
  return place;
}

// Capture one execution; on failure, say why and go on without.
std::unique_ptr<CudaGraph> EngineSession::capture(std::size_t profile) {
  EngineContext& context = *contexts_[profile];
  if (!context.capturable()) return nullptr;  // try again at the next step
  try {
    memory_->begin_capture();
    const bool accepted = context.enqueue();
    std::unique_ptr<CudaGraph> graph = memory_->end_capture();
    if (accepted) return graph;
    no_graphs_because_ = graph_ + " cannot be captured";
  } catch (const Error& error) {
    no_graphs_because_ = error.what();
  }
  return nullptr;
}

void EngineSession::enqueue(std::size_t profile) {
  if (!contexts_[profile]->enqueue()) fail("expected " + graph_ + " to run, found: " + engine_->last_error());
}

}  // namespace fastv
