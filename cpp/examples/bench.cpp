// Where the time to first token goes, over R, and what a decode step costs: medians over rounds, as one line of JSON
// per R. The request comes from a file that `fastv-trt run --dump-inputs` wrote.
#include <algorithm>
#include <cstdio>

#include "fastv/error.hpp"
#include "fastv/generation.hpp"
#include "inputs.hpp"
#include "options.hpp"

namespace {

constexpr const char* kUsage =
    "fastv-bench BUNDLE --inputs FILE [--ratios 0,0.5,0.75] [--rounds N] [--new-tokens N] [--device NAME] [--threads "
    "N]";

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::vector<double> numbers(const std::string& text) {
  std::vector<double> out;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    out.push_back(std::atof(text.substr(at, comma - at).c_str()));
    at = comma + 1;
  }
  return out;
}

int bench(int count, char** arguments) {
  const Options options(count, arguments, {"--inputs", "--ratios", "--rounds", "--new-tokens", "--device", "--threads"},
                        kUsage);
  if (!options.has("--inputs"))
    throw fastv::Error(fastv::Error::Kind::input, std::string("expected --inputs; usage: ") + kUsage);
  const fastv::Bundle bundle = fastv::Bundle::open(options.bundle);
  const fastv::Request request = read_request(options.text("--inputs"));
  fastv::Chain chain(bundle, device_named(bundle, options));
  fastv::Limits limits;
  limits.stop.emplace();
  limits.new_tokens = options.integer("--new-tokens", 16);
  const std::int64_t rounds = std::max<std::int64_t>(1, options.integer("--rounds", 5));

  for (const double ratio : numbers(options.text("--ratios", "0,0.5,0.75"))) {
    fastv::Pruning pruning;
    pruning.ratio = ratio;
    pruning.ranking = bundle.manifest().rankings.empty() ? "random" : bundle.manifest().rankings.front();
    std::vector<double> vision, prefix, rank, suffix, total, decode;
    std::int64_t bytes = 0, kept = 0;
    for (std::int64_t round = 0; round <= rounds; ++round) {
      fastv::Generation generation(chain, {request}, {pruning}, limits);
      generation.run();
      if (round == 0) continue;  // warm-up
      const fastv::Timings& t = generation.prefills()[0].timings;
      vision.push_back(t.vision);
      prefix.push_back(t.prefix);
      rank.push_back(t.rank_select);
      suffix.push_back(t.suffix);
      total.push_back(t.total());
      decode.push_back(generation.decode_seconds() /
                       static_cast<double>(std::max<std::int64_t>(1, generation.decode_steps())));
      bytes = generation.kv_bytes();
      kept = generation.prefills()[0].kept_tokens;
    }
    std::printf(
        "{\"ratio\": %g, \"kept_tokens\": %lld, \"ttft_ms\": %.3f, \"vision_ms\": %.3f, \"prefix_ms\": %.3f, "
        "\"rank_select_ms\": %.3f, \"suffix_ms\": %.3f, \"decode_step_ms\": %.3f, \"kv_bytes\": %lld}\n",
        ratio, static_cast<long long>(kept), 1e3 * median(total), 1e3 * median(vision), 1e3 * median(prefix),
        1e3 * median(rank), 1e3 * median(suffix), 1e3 * median(decode), static_cast<long long>(bytes));
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  try {
    return bench(count, arguments);
  } catch (const fastv::Error& error) {
    std::fprintf(stderr, "fastv-bench: %s\n", error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fastv-bench: unexpected: %s\n", error.what());
    return 1;
  }
}
