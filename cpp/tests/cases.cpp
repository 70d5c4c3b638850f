// Runs cases on a bundle and prints what came out, for the comparison with Python: cases BUNDLE CASES.json
//
// CASES.json is a list of {"inputs": [FILE, ...], "pruning": [{...}, ...], "new_tokens": n, "stop": [...] or null,
// "turns": [FILE, ...]}; `turns` continue the batch's only row. Prints a JSON list, or one line of error and its code.
#include <cstdio>
#include <fstream>
#include <iostream>

#include <nlohmann/json.hpp>

#include "fastv/error.hpp"
#include "fastv/generation.hpp"
#include "fastv/ort.hpp"
#include "inputs.hpp"

using nlohmann::json;

namespace {

fastv::Pruning pruning_of(const json& given) {
  fastv::Pruning out;
  if (given.contains("ratio")) out.ratio = given["ratio"].get<double>();
  if (given.contains("keep")) out.keep = given["keep"].get<std::int64_t>();
  out.ranking = given.value("ranking", "last-query");
  const std::string scope = given.value("scope", "all");
  out.scope = scope == "image" ? fastv::Scope::image : scope == "frame" ? fastv::Scope::frame : fastv::Scope::all;
  out.seed = given.value("seed", std::uint64_t{0});
  out.required = given.value("required", false);
  return out;
}

json described(const fastv::Generation& generation) {
  json rows = json::array();
  for (std::size_t row = 0; row < generation.tokens().size(); ++row) {
    const fastv::Prefill& prefill = generation.prefills()[row];
    json one = {{"tokens", generation.tokens()[row]},
                {"keep_indices", prefill.keep_indices},
                {"logits", prefill.logits},
                {"notes", prefill.notes},
                {"kv_bytes", generation.kv_bytes()}};
    one["scores"] = prefill.scores ? json(*prefill.scores) : json();
    rows.push_back(one);
  }
  return rows;
}

json run(fastv::Chain& chain, const json& given) {
  std::vector<fastv::Request> requests;
  for (const auto& path : given["inputs"]) requests.push_back(read_request(path.get<std::string>()));
  std::vector<fastv::Pruning> prunings;
  for (const auto& one : given["pruning"]) prunings.push_back(pruning_of(one));
  fastv::Limits limits;
  limits.new_tokens = given["new_tokens"].get<std::int64_t>();
  if (!given["stop"].is_null()) limits.stop = given["stop"].get<std::vector<std::int64_t>>();
  json out = json::array();
  std::optional<fastv::Caches> caches;
  std::vector<std::string> turns = given.value("turns", std::vector<std::string>{});
  for (std::size_t turn = 0; turn <= turns.size(); ++turn) {
    if (turn) {
      const std::int64_t unread = out.back()[0]["tokens"].back().get<std::int64_t>();
      requests = {read_request(turns[turn - 1])};
      fastv::Request& request = requests[0];
      // One text token before the turn: its position is 0, and the others move on by one, in each of three rows.
      const std::size_t length = request.input_ids.size(), axes = request.position_ids.size() / length;
      for (std::int64_t& position : request.position_ids) ++position;
      for (std::size_t axis = axes; axis-- > 0;)
        request.position_ids.insert(request.position_ids.begin() + static_cast<std::ptrdiff_t>(axis * length), 0);
      request.input_ids.insert(request.input_ids.begin(), unread);
    }
    fastv::Generation generation(chain, requests, prunings, limits, std::move(caches));
    std::size_t streamed = 0;
    generation.run([&](std::size_t, std::int64_t) { ++streamed; });
    std::size_t made = 0;
    for (const auto& row : generation.tokens()) made += row.size();
    if (streamed != made) throw std::logic_error("not every token was streamed");
    out.push_back(described(generation));
    caches.emplace(generation.take_caches());
  }
  return out;
}

}  // namespace

int main(int count, char** arguments) {
  try {
    if (count != 3) throw fastv::Error(fastv::Error::Kind::input, "expected BUNDLE CASES.json");
    const fastv::Bundle bundle = fastv::Bundle::open(arguments[1]);
    fastv::Chain chain(bundle, fastv::ort_device(bundle));
    std::ifstream file(arguments[2]);
    json out = json::array();
    for (const json& one : json::parse(file)) {
      try {
        out.push_back(run(chain, one));
      } catch (const fastv::Error& error) {
        out.push_back({{"error", error.what()}, {"exit_code", error.exit_code()}});
      }
    }
    std::cout << out << "\n";
  } catch (const fastv::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
}
