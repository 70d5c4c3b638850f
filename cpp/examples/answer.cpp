// A bundle, a picture and a question in; the answer, as it comes, out. See docs/cpp.md.
#include <cstdio>

#include "demo_processor.hpp"
#include "fastv/error.hpp"
#include "fastv/generation.hpp"
#include "inputs.hpp"
#include "options.hpp"

namespace {

constexpr const char* kUsage =
    "fastv-answer BUNDLE (--image PICTURE --prompt QUESTION | --inputs FILE) [--ratio R | --keep N] [--ranking NAME] "
    "[--new-tokens N] [--device NAME] [--threads N]";

int answer(int count, char** arguments) {
  const Options options(
      count, arguments,
      {"--image", "--prompt", "--inputs", "--ratio", "--keep", "--ranking", "--new-tokens", "--device", "--threads"},
      kUsage);
  if (options.has("--inputs") == (options.has("--image") && options.has("--prompt")))
    throw fastv::Error(fastv::Error::Kind::input,
                       std::string("expected --image and --prompt, or --inputs; usage: ") + kUsage);
  const fastv::Bundle bundle = fastv::Bundle::open(options.bundle);
  const fastv::Manifest& manifest = bundle.manifest();

  fastv::Pruning pruning;
  pruning.ranking = options.text("--ranking", manifest.rankings.empty() ? "random" : manifest.rankings.front());
  if (options.has("--keep")) pruning.keep = options.integer("--keep", 0);
  if (options.has("--ratio") || !options.has("--keep")) pruning.ratio = options.real("--ratio", 0.5);
  fastv::Limits limits;
  limits.new_tokens = options.integer("--new-tokens", 128);

  std::optional<DemoProcessor> processor;  // with --inputs it only turns tokens into text, if it can
  try {
    processor.emplace(bundle);
  } catch (const fastv::Error&) {
    if (!options.has("--inputs")) throw;
  }
  const fastv::Request request = options.has("--inputs")
                                     ? read_request(options.text("--inputs"))
                                     : processor->request(options.text("--prompt"), options.text("--image"));

  fastv::Chain chain(bundle, device_named(bundle, options));
  fastv::Generation generation(chain, {request}, {pruning}, limits);
  std::vector<std::int64_t> tokens;
  std::size_t shown = 0;
  generation.run([&](std::size_t, std::int64_t token) {
    if (!processor) {
      std::printf("%lld ", static_cast<long long>(token));
    } else {
      tokens.push_back(token);
      const std::string text = processor->decode(tokens);
      const std::size_t start = text.find_first_not_of(' ');
      if (start == std::string::npos) return;
      std::fputs(text.c_str() + std::max(shown, start), stdout);
      shown = text.size();
    }
    std::fflush(stdout);
  });
  std::printf("\n");

  const fastv::Prefill& prefill = generation.prefills()[0];
  const fastv::Timings& t = prefill.timings;
  for (const std::string& note : prefill.notes) std::fprintf(stderr, "note: %s\n", note.c_str());
  std::fprintf(
      stderr,
      "kept %lld of %lld image tokens; TTFT %.1f ms (vision %.1f, prefix %.1f, rank+select %.1f, suffix %.1f); "
      "%lld decode steps %.1f ms; KV %.1f KiB\n",
      static_cast<long long>(prefill.kept_tokens), static_cast<long long>(prefill.image_tokens), 1e3 * t.total(),
      1e3 * t.vision, 1e3 * t.prefix, 1e3 * t.rank_select, 1e3 * t.suffix,
      static_cast<long long>(generation.decode_steps()), 1e3 * generation.decode_seconds(),
      static_cast<double>(generation.kv_bytes()) / 1024.0);
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  try {
    return answer(count, arguments);
  } catch (const fastv::Error& error) {
    std::fprintf(stderr, "fastv-answer: %s\n", error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fastv-answer: unexpected: %s\n", error.what());
    return 1;
  }
}
