// The session over TensorRT engines, driven on a simulated engine: profiles, buckets, alias pairs, CUDA graphs, errors.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <cstring>
#include <numeric>

#include "engine.hpp"
#include "fastv/error.hpp"

using namespace fastv;

namespace {

// Work is recorded while a capture is on, and done at once otherwise; a launch does what was recorded.
class SimulatedGpu final : public CudaMemory {
 public:
  Place place() const override { return Place::device; }
  void* stream() const override { return nullptr; }
  int gpu() const override { return 0; }
  std::shared_ptr<void> allocate(std::size_t bytes) override { return host_->allocate(bytes); }
  void zero(void* target, std::size_t bytes) override { host_->zero(target, bytes); }
  void write(void* target, const void* host, std::size_t bytes) override { host_->write(target, host, bytes); }
  void read(void* host, const void* source, std::size_t bytes) override { host_->read(host, source, bytes); }
  void copy_rows(void* target, std::size_t target_pitch, const void* source, std::size_t source_pitch,
                 std::size_t width, std::size_t rows) override {
    host_->copy_rows(target, target_pitch, source, source_pitch, width, rows);
  }
  void synchronize() override {}

  void begin_capture() override {
    if (refuse_capture) throw Error(Error::Kind::failure, "this GPU captures nothing");
    recording_ = true;
  }
  std::unique_ptr<CudaGraph> end_capture() override {
    recording_ = false;
    struct Graph final : CudaGraph {
      Graph(std::vector<std::function<void()>> work, int& count) : recorded(std::move(work)), launches(count) {}
      void launch() override {
        ++launches;
        for (const auto& one : recorded) one();
      }
      std::vector<std::function<void()>> recorded;
      int& launches;
    };
    return std::make_unique<Graph>(std::exchange(recorded_, {}), launches);
  }

  void submit(std::function<void()> work) { recording_ ? recorded_.push_back(std::move(work)) : work(); }

  int launches = 0;
  bool refuse_capture = false;

 private:
  std::shared_ptr<Memory> host_ = host_memory();
  bool recording_ = false;
  std::vector<std::function<void()>> recorded_;
};

class Gpu final : public Device {
 public:
  explicit Gpu(std::shared_ptr<Memory> memory) : Device(std::move(memory)) {}
  std::string name() const override { return "simulated"; }
  std::int64_t capacity(const std::string&, std::int64_t needed) const override { return needed; }
  std::unique_ptr<Session> session(const std::string&) override { return nullptr; }
};

// sum[b] = x[b] + the number of slots; and the cache, in place, gets x.
struct SimulatedEngine final : Engine {
  explicit SimulatedEngine(std::shared_ptr<SimulatedGpu> device) : gpu(std::move(device)) {}

  std::vector<std::string> names() const override { return {"x", "slots", "past", "present", "sum"}; }
  bool on_host(const std::string&) const override { return false; }
  std::size_t profiles() const override { return 2; }
  std::optional<std::string> alias(const std::string& output) const override {
    if (blind) return std::nullopt;
    return output == "present" ? aliased : "";
  }
  std::string last_error() const override { return "the simulated reason"; }

  struct Context final : EngineContext {
    Context(std::shared_ptr<SimulatedGpu> device, bool run) : gpu(std::move(device)), runs(run) {}
    bool set_input_shape(const std::string& name, const Shape& shape) override { return shapes[name] = shape, true; }
    std::vector<std::string> infer_shapes() override { return {}; }
    Shape shape(const std::string& name) const override { return shapes.at(name == "sum" ? "x" : "past"); }
    bool set_address(const std::string& name, void* data) override { return places[name] = data, true; }
    bool capturable() const override { return true; }
    bool enqueue() override {
      if (!runs) return false;
      gpu->submit([places = places, rows = shapes.at("x")[0], slots = shapes.at("slots")[0]] {
        const auto at = [&](const char* name) { return static_cast<float*>(places.at(name)); };
        for (std::int64_t i = 0; i < rows; ++i) {
          at("sum")[i] = at("x")[i] + static_cast<float>(slots);
          at("present")[i] = at("x")[i];
        }
      });
      return true;
    }
    std::shared_ptr<SimulatedGpu> gpu;
    bool runs;
    std::map<std::string, Shape> shapes;
    std::map<std::string, void*> places;
  };

  std::unique_ptr<EngineContext> context(std::size_t) override { return std::make_unique<Context>(gpu, runs); }

  std::shared_ptr<SimulatedGpu> gpu;
  std::string aliased = "past";
  bool blind = false, runs = true;
};

EngineRecord description() {
  EngineRecord out;
  out.inputs = {
      {"x", "float32", {-1}, {}, false}, {"slots", "int64", {-1}, {}, false}, {"past", "float32", {-1}, {}, false}};
  out.outputs = {{"present", "float32", {-1}, {}, false}, {"sum", "float32", {-1}, {}, false}};
  out.profiles = {{"prefill", {{"x", {{1}, {64}, {128}}}, {"slots", {{1}, {64}, {160}}}}},
                  {"decode", {{"x", {{1}, {1}, {2}}}, {"slots", {{1}, {64}, {160}}}}}};
  out.aliases = {{"present", "past"}};
  return out;
}

struct Fixture {
  std::shared_ptr<SimulatedGpu> memory = std::make_shared<SimulatedGpu>();
  Gpu gpu{memory};
  Tensor slots = gpu.zeros({256}, Dtype::int64);
  std::unique_ptr<SimulatedEngine> engine = std::make_unique<SimulatedEngine>(memory);

  EngineSession session(bool graphs = true) {
    return {"suffix", description(), std::move(engine), memory, slots, graphs};
  }

  Tensors tensors(std::int64_t rows, std::int64_t count, bool placed) {
    Tensors out;
    out["x"] = gpu.zeros({rows}, Dtype::float32);
    out["slots"] = gpu.zeros({count}, Dtype::int64);
    out["past"] = out["present"] = gpu.zeros({8}, Dtype::float32);
    if (placed) out["sum"] = gpu.zeros({rows}, Dtype::float32);
    return out;
  }
};

float first(const Tensor& tensor) { return *static_cast<const float*>(tensor.data); }

std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE_FIXTURE(Fixture, "prefill runs plainly, in its profile, with outputs of the session's own") {
  EngineSession one = session();
  const Tensors out = one.run(tensors(3, 7, false));
  CHECK(out.at("sum").shape == Shape{3});
  CHECK(first(out.at("sum")) == 7.0F);
  CHECK(memory->launches == 0);
}

TEST_CASE_FIXTURE(Fixture, "decode rounds slots up to a bucket, captures the second step and launches from then on") {
  EngineSession one = session();
  Tensors step = tensors(2, 60, true);
  for (int i = 0; i < 5; ++i) {
    *static_cast<float*>(step["x"].data) = static_cast<float>(i);
    step["slots"].shape = {60 + i};
    one.run(step);
    CHECK(first(step["sum"]) == static_cast<float>(i + 64));
    CHECK(first(step["past"]) == static_cast<float>(i));  // in place, by the graph too
    CHECK(memory->launches == i);
  }
  step["slots"].shape = {65};  // the next bucket is another graph
  one.run(step);
  CHECK(first(step["sum"]) == 4.0F + 128.0F);
  CHECK(memory->launches == 4);
  step["slots"].shape = {160};  // a bucket never exceeds the profile
  one.run(step);
  CHECK(first(step["sum"]) == 4.0F + 160.0F);
}

TEST_CASE_FIXTURE(Fixture, "other addresses are another graph") {
  EngineSession one = session();
  Tensors step = tensors(2, 60, true), other = tensors(2, 60, true);
  for (int i = 0; i < 3; ++i) one.run(step);
  *static_cast<float*>(other["x"].data) = 5.0F;
  one.run(other);
  CHECK(first(other["sum"]) == 69.0F);
  CHECK(memory->launches == 2);
}

TEST_CASE_FIXTURE(Fixture, "where capture fails, steps run plainly and the session says why") {
  memory->refuse_capture = true;
  EngineSession one = session();
  Tensors step = tensors(1, 3, true);
  for (int i = 0; i < 4; ++i) {
    one.run(step);
    CHECK(first(step["sum"]) == 64.0F);
  }
  CHECK(one.no_graphs_because() == "this GPU captures nothing");
  CHECK(memory->launches == 0);
}

TEST_CASE_FIXTURE(Fixture, "graphs can be switched off") {
  EngineSession one = session(false);
  Tensors step = tensors(1, 3, true);
  for (int i = 0; i < 4; ++i) one.run(step);
  CHECK(memory->launches == 0);
  CHECK(one.no_graphs_because() == "they are switched off");
}

TEST_CASE_FIXTURE(Fixture, "a request beyond the profiles is refused with what exceeds which") {
  EngineSession one = session();
  CHECK(error_of([&] { one.run(tensors(200, 7, false)); }) ==
        "expected a request within the suffix engine's prefill profile, found that x axis 0 is 200, not 1..128; build "
        "with larger --max-prompt, --max-batch, --max-images or --kept");
}

TEST_CASE_FIXTURE(Fixture, "a cache that is not written in place is refused") {
  EngineSession one = session();
  Tensors given = tensors(3, 7, false);
  given["present"] = gpu.zeros({8}, Dtype::float32);
  CHECK(error_of([&] { one.run(given); }) == "expected present in the memory of past, found another place");
}

TEST_CASE_FIXTURE(Fixture, "wrong dtypes, places, shapes and addresses are refused") {
  EngineSession one = session();
  Tensors given = tensors(3, 7, true);
  given["x"].dtype = Dtype::float16;
  CHECK(error_of([&] { one.run(given); }) == "expected x as float32 for suffix, found float16");
  given = tensors(3, 7, true);
  given["x"].place = Place::host;
  CHECK(error_of([&] { one.run(given); }) == "expected x on the GPU, found it on the host");
  given = tensors(3, 7, true);
  given["sum"].shape = {2};
  CHECK(error_of([&] { one.run(given); }) == "expected a place of float32[3] for sum, found [2]");
  given = tensors(3, 7, true);
  given["x"].data = static_cast<char*>(given["x"].data) + 4;
  CHECK(error_of([&] { one.run(given); }) == "expected x at a multiple of 256 bytes, found another address");
  given.erase("x");
  CHECK(error_of([&] { one.run(given); }) == "expected x for suffix, found none");
}

TEST_CASE_FIXTURE(Fixture, "a plan that is not what engine.json says is refused") {
  engine->aliased = "";
  CHECK(error_of([&] { session(); }) ==
        "expected the plan of suffix as engine.json describes it, found another; build again");
  engine = std::make_unique<SimulatedEngine>(memory);
  engine->aliased = "";
  engine->blind = true;  // headers that cannot tell aliases: the record is trusted
  session();
}

TEST_CASE_FIXTURE(Fixture, "an engine that fails says the library's reason") {
  engine->runs = false;
  EngineSession one = session();
  CHECK(error_of([&] { one.run(tensors(3, 7, false)); }) == "expected suffix to run, found: the simulated reason");
}
