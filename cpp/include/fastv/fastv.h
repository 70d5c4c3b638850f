/* The C interface: from a bundle to tokens, for products in other languages. Opaque handles, error codes, no state.
 *
 * Every function that can fail returns FASTV_OK or an error code, and writes the code and one line of text into `error`
 * (which may be NULL). A handle belongs to one thread at a time. Free each one with its own function; NULL is allowed.
 * Pointers that are handed out live as long as the handle that they came from. */
#ifndef FASTV_H
#define FASTV_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define FASTV_API __declspec(dllexport)
#else
#define FASTV_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum { FASTV_OK = 0, FASTV_FAILURE = 1, FASTV_INPUT = 2, FASTV_UNAVAILABLE = 3 };
enum { FASTV_FLOAT32 = 0, FASTV_FLOAT16 = 1, FASTV_BFLOAT16 = 2, FASTV_INT64 = 3, FASTV_INT32 = 4 };
enum { FASTV_HOST = 0, FASTV_DEVICE = 1 };

typedef struct {
  int code;
  char text[1024];
} fastv_error;

typedef struct {
  double ratio;        /* R, the share of image tokens to remove; not read if keep is 0 or more */
  int64_t keep;        /* image tokens to keep, or -1 */
  const char* ranking; /* "last-query", "received", "random", "uniform", "external"; NULL is last-query */
  int scope;           /* 0: one pool for all images, 1: a share for each, 2: for each frame of a clip */
  uint64_t seed;       /* of the random ranking */
  int required;        /* 1: nothing to prune is an error */
} fastv_pruning;

typedef struct {
  int64_t prompt_tokens, image_tokens, kept_tokens;
  double preprocess, vision, prefix, rank_select, suffix; /* seconds */
} fastv_prefill;

typedef struct fastv_runtime fastv_runtime;
typedef struct fastv_request fastv_request;
typedef struct fastv_generation fastv_generation;

/* Called with each token as it comes. */
typedef void (*fastv_on_token)(void* user, size_t row, int64_t token);

/* Open a bundle, check its hashes and load its graphs. `device`: "cpu", "cuda", "tensorrt" (the first engines that run
 * here) or "tensorrt:NAME". `threads`: of the CPU, 0 for all cores. */
FASTV_API int fastv_load(const char* bundle, const char* device, int threads, fastv_runtime** out, fastv_error* error);
FASTV_API void fastv_unload(fastv_runtime* runtime);

/* A prompt: ids with image tokens expanded, and the number of image tokens of each image. Both are copied. */
FASTV_API int fastv_request_new(const int64_t* ids, size_t count, const int64_t* image_sizes, size_t images,
                                fastv_request** out, fastv_error* error);
/* An input of the vision graph, such as "pixel_values" [I,3,H,W]. Not copied: it has to outlive the request. */
FASTV_API int fastv_request_vision_input(fastv_request* request, const char* name, const void* data, int dtype,
                                         const int64_t* shape, size_t rank, int place, fastv_error* error);
/* Of an M-RoPE model with images: position ids [3, N] from the prompt's start. Copied. */
FASTV_API int fastv_request_positions(fastv_request* request, const int64_t* positions, size_t count,
                                      fastv_error* error);
/* Image tokens of each frame, where an image is a clip, for scope 2. Copied. */
FASTV_API int fastv_request_frames(fastv_request* request, const int64_t* sizes, size_t count, fastv_error* error);
/* Scores for the ranking "external", one per image token. Copied. */
FASTV_API int fastv_request_scores(fastv_request* request, const float* scores, size_t count, fastv_error* error);
FASTV_API void fastv_request_free(fastv_request* request);

/* Prefill each request, then decode them together, greedily.
 *   prunings      one for all requests, or one for each
 *   stop          ids that end a row; NULL for the model's own
 *   earlier       a generation with as many rows to continue as a later turn (its caches move on), or NULL */
FASTV_API int fastv_generate(fastv_runtime* runtime, fastv_request* const* requests, size_t count,
                             const fastv_pruning* prunings, size_t pruning_count, int64_t new_tokens,
                             const int64_t* stop, size_t stop_count, fastv_generation* earlier, fastv_on_token on_token,
                             void* user, fastv_generation** out, fastv_error* error);

/* Of one row; an empty result for a row that is not there. */
FASTV_API const int64_t* fastv_tokens(const fastv_generation* generation, size_t row, size_t* count);
FASTV_API const int64_t* fastv_keep_indices(const fastv_generation* generation, size_t row, size_t* count);
FASTV_API const float* fastv_prefill_logits(const fastv_generation* generation, size_t row, size_t* count);
FASTV_API fastv_prefill fastv_prefill_of(const fastv_generation* generation, size_t row);

/* Of the batch: seconds and number of its decode steps, and bytes of its caches. */
FASTV_API double fastv_decode_seconds(const fastv_generation* generation);
FASTV_API int64_t fastv_decode_steps(const fastv_generation* generation);
FASTV_API int64_t fastv_kv_bytes(const fastv_generation* generation);
FASTV_API void fastv_generation_free(fastv_generation* generation);

/* The choice alone, for a pipeline of your own: which of `length` tokens live on. `scores` has one value per image
 * token, or is NULL for random and uniform. `kept` has room for `length` indices; `count` gets their number. */
FASTV_API int fastv_select(const fastv_pruning* pruning, int64_t length, const int64_t* positions, size_t tokens,
                           const int64_t* image_sizes, size_t images, const float* scores, int64_t* kept, size_t* count,
                           fastv_error* error);

#ifdef __cplusplus
}
#endif

#endif
