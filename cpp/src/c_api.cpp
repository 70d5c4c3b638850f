#include "fastv/fastv.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "fastv/error.hpp"
#include "fastv/generation.hpp"
#ifdef FASTV_ORT
#include "fastv/ort.hpp"
#endif
#ifdef FASTV_TENSORRT
#include "fastv/trt.hpp"
#endif

struct fastv_runtime {
  fastv::Chain chain;
};
struct fastv_request {
  fastv::Request request;
};
struct fastv_generation {
  fastv::Generation generation;
  std::int64_t kv_bytes;
};

namespace {

constexpr auto kInput = fastv::Error::Kind::input;
constexpr fastv::Dtype kDtypes[] = {fastv::Dtype::float32, fastv::Dtype::float16, fastv::Dtype::bfloat16,
                                    fastv::Dtype::int64, fastv::Dtype::int32};

int report(fastv_error* error, int code, const char* text) {
  if (error) {
    error->code = code;
    std::strncpy(error->text, text, sizeof error->text - 1);
    error->text[sizeof error->text - 1] = '\0';
  }
  return code;
}

// No exception leaves the library.
template <class Work>
int guarded(fastv_error* error, Work work) {
  try {
    work();
    return report(error, FASTV_OK, "");
  } catch (const fastv::Error& failed) {
    return report(error, failed.exit_code(), failed.what());
  } catch (const std::bad_alloc&) {
    return report(error, FASTV_FAILURE,
                  "expected enough memory, found none left; use a smaller batch or a shorter prompt");
  } catch (const std::exception& failed) {
    return report(error, FASTV_FAILURE, failed.what());
  }
}

template <class T>
std::vector<T> copied(const T* values, std::size_t count, const char* what) {
  if (!values && count) throw fastv::Error(kInput, std::string("expected ") + what + ", found NULL");
  return values ? std::vector<T>(values, values + count) : std::vector<T>();
}

template <class T>
T& needed(T* value, const char* what) {
  if (!value) throw fastv::Error(kInput, std::string("expected ") + what + ", found NULL");
  return *value;
}

fastv::Pruning pruning_of(const fastv_pruning& given) {
  fastv::Pruning out;
  if (given.keep >= 0) {
    out.keep = given.keep;
  } else {
    out.ratio = given.ratio;
  }
  if (given.ranking) out.ranking = given.ranking;
  if (given.scope < 0 || given.scope > 2)
    throw fastv::Error(kInput, "expected a scope of 0, 1 or 2, found " + std::to_string(given.scope));
  out.scope = static_cast<fastv::Scope>(given.scope);
  out.seed = given.seed;
  out.required = given.required != 0;
  out.check();
  return out;
}

std::shared_ptr<fastv::Device> device_of(const fastv::Bundle& bundle, const std::string& name, int threads) {
#ifdef FASTV_TENSORRT
  if (name.rfind("tensorrt", 0) == 0 && (name.size() == 8 || name[8] == ':'))
    return fastv::trt_device(bundle, name.size() > 9 ? name.substr(9) : "");
#endif
#ifdef FASTV_ORT
  fastv::OrtOptions options;
  if (threads) options.threads = threads;
  return fastv::ort_device(bundle, name, options);
#else
  static_cast<void>(bundle);
  static_cast<void>(threads);
  throw fastv::Error(fastv::Error::Kind::unavailable,
                     "expected a device that this library was built with, found " + name);
#endif
}

template <class T>
const T* row_of(const std::vector<T>* values, std::size_t* count) {
  if (count) *count = values ? values->size() : 0;
  return values ? values->data() : nullptr;
}

const fastv::Prefill* prefill_of(const fastv_generation* generation, std::size_t row) {
  if (!generation || row >= generation->generation.prefills().size()) return nullptr;
  return &generation->generation.prefills()[row];
}

}  // namespace

int fastv_load(const char* bundle, const char* device, int threads, fastv_runtime** out, fastv_error* error) {
  return guarded(error, [&] {
    needed(out, "a place for the runtime") = nullptr;
    const fastv::Bundle opened = fastv::Bundle::open(&needed(bundle, "the path of a bundle"));
    *out = new fastv_runtime{fastv::Chain(opened, device_of(opened, device ? device : "cpu", threads))};
  });
}

void fastv_unload(fastv_runtime* runtime) { delete runtime; }

int fastv_request_new(const int64_t* ids, size_t count, const int64_t* image_sizes, size_t images, fastv_request** out,
                      fastv_error* error) {
  return guarded(error, [&] {
    needed(out, "a place for the request") = nullptr;
    fastv::Request request;
    request.input_ids = copied(ids, count, "token ids");
    request.image_sizes = copied(image_sizes, images, "image sizes");
    *out = new fastv_request{std::move(request)};
  });
}

int fastv_request_vision_input(fastv_request* request, const char* name, const void* data, int dtype,
                               const int64_t* shape, size_t rank, int place, fastv_error* error) {
  return guarded(error, [&] {
    if (dtype < 0 || dtype >= static_cast<int>(std::size(kDtypes)))
      throw fastv::Error(kInput, "expected a dtype of fastv.h, found " + std::to_string(dtype));
    fastv::Shape sizes = copied(shape, rank, "a shape");
    if (std::any_of(sizes.begin(), sizes.end(), [](auto size) { return size < 0; }))
      throw fastv::Error(kInput, "expected a shape of sizes of 0 or more, found " + fastv::text_of(sizes));
    needed(request, "a request").request.vision_inputs[&needed(name, "a name")] =
        fastv::Tensor::over(&needed(static_cast<const char*>(data), "data"), std::move(sizes), kDtypes[dtype],
                            place == FASTV_DEVICE ? fastv::Place::device : fastv::Place::host);
  });
}

int fastv_request_scores(fastv_request* request, const float* scores, size_t count, fastv_error* error) {
  return guarded(error, [&] { needed(request, "a request").request.scores = copied(scores, count, "scores"); });
}

int fastv_request_positions(fastv_request* request, const int64_t* positions, size_t count, fastv_error* error) {
  return guarded(error,
                 [&] { needed(request, "a request").request.position_ids = copied(positions, count, "positions"); });
}

int fastv_request_frames(fastv_request* request, const int64_t* sizes, size_t count, fastv_error* error) {
  return guarded(error,
                 [&] { needed(request, "a request").request.frame_sizes = copied(sizes, count, "frame sizes"); });
}

void fastv_request_free(fastv_request* request) { delete request; }

int fastv_generate(fastv_runtime* runtime, fastv_request* const* requests, size_t count, const fastv_pruning* prunings,
                   size_t pruning_count, int64_t new_tokens, const int64_t* stop, size_t stop_count,
                   fastv_generation* earlier, fastv_on_token on_token, void* user, fastv_generation** out,
                   fastv_error* error) {
  return guarded(error, [&] {
    needed(out, "a place for the generation") = nullptr;
    std::vector<fastv::Request> batch;
    for (fastv_request* one : copied(requests, count, "requests")) batch.push_back(needed(one, "a request").request);
    std::vector<fastv::Pruning> policies;
    for (const fastv_pruning& one : copied(prunings, pruning_count, "prunings")) policies.push_back(pruning_of(one));
    fastv::Limits limits;
    limits.new_tokens = new_tokens;
    if (stop) limits.stop = copied(stop, stop_count, "stop tokens");
    std::optional<fastv::Caches> caches;
    if (earlier) caches.emplace(earlier->generation.take_caches());
    auto made = std::make_unique<fastv_generation>(
        fastv_generation{fastv::Generation(needed(runtime, "a runtime").chain, std::move(batch), std::move(policies),
                                           std::move(limits), std::move(caches)),
                         0});
    made->generation.run([&](std::size_t row, std::int64_t token) {
      if (on_token) on_token(user, row, token);
    });
    made->kv_bytes = made->generation.kv_bytes();
    *out = made.release();
  });
}

const int64_t* fastv_tokens(const fastv_generation* generation, size_t row, size_t* count) {
  const bool there = generation && row < generation->generation.tokens().size();
  return row_of(there ? &generation->generation.tokens()[row] : nullptr, count);
}

const int64_t* fastv_keep_indices(const fastv_generation* generation, size_t row, size_t* count) {
  const fastv::Prefill* prefill = prefill_of(generation, row);
  return row_of(prefill ? &prefill->keep_indices : nullptr, count);
}

const float* fastv_prefill_logits(const fastv_generation* generation, size_t row, size_t* count) {
  const fastv::Prefill* prefill = prefill_of(generation, row);
  return row_of(prefill ? &prefill->logits : nullptr, count);
}

fastv_prefill fastv_prefill_of(const fastv_generation* generation, size_t row) {
  const fastv::Prefill* prefill = prefill_of(generation, row);
  if (!prefill) return {};
  const fastv::Timings& t = prefill->timings;
  return {prefill->prompt_tokens,
          prefill->image_tokens,
          prefill->kept_tokens,
          t.preprocess,
          t.vision,
          t.prefix,
          t.rank_select,
          t.suffix};
}

double fastv_decode_seconds(const fastv_generation* generation) {
  return generation ? generation->generation.decode_seconds() : 0.0;
}

int64_t fastv_decode_steps(const fastv_generation* generation) {
  return generation ? generation->generation.decode_steps() : 0;
}

int64_t fastv_kv_bytes(const fastv_generation* generation) { return generation ? generation->kv_bytes : 0; }

void fastv_generation_free(fastv_generation* generation) { delete generation; }

int fastv_select(const fastv_pruning* pruning, int64_t length, const int64_t* positions, size_t tokens,
                 const int64_t* image_sizes, size_t images, const float* scores, int64_t* kept, size_t* count,
                 fastv_error* error) {
  return guarded(error, [&] {
    std::optional<std::vector<float>> values;
    if (scores) values = copied(scores, tokens, "scores");
    const auto chosen =
        fastv::select(pruning_of(needed(pruning, "a pruning")), length, copied(positions, tokens, "positions"),
                      copied(image_sizes, images, "image sizes"), values);
    std::copy(chosen.begin(), chosen.end(), &needed(kept, "a place for the indices"));
    needed(count, "a place for the count") = chosen.size();
  });
}
