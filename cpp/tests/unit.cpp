// The policy, the bundle reader and the small parts, without a model.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

#include <nlohmann/json.hpp>

#include "fastv/bundle.hpp"
#include "fastv/device.hpp"
#include "fastv/error.hpp"
#include "fastv/pruning.hpp"
#include "fastv/target.hpp"
#include "sha256.hpp"
#include "text.hpp"

namespace fs = std::filesystem;
using namespace fastv;
using nlohmann::json;

namespace {

Pruning pruning_of(const json& given) {
  Pruning out;
  if (given.contains("ratio")) out.ratio = given["ratio"].get<double>();
  if (given.contains("keep")) out.keep = given["keep"].get<std::int64_t>();
  out.ranking = given.value("ranking", "last-query");
  out.scope = given.value("scope", "all") == "image" ? Scope::image : Scope::all;
  out.seed = given.value("seed", std::uint64_t{0});
  return out;
}

std::optional<std::vector<float>> scores_of(const json& given) {
  if (given.is_null()) return std::nullopt;
  std::vector<float> out;
  for (const json& value : given)
    out.push_back(value.is_null() ? std::numeric_limits<float>::quiet_NaN() : value.get<float>());
  return out;
}

float from_half(std::uint16_t half) {
  const int exponent = half >> 10 & 31, mantissa = half & 1023;
  const float sign = half & 0x8000 ? -1.0F : 1.0F;
  if (exponent == 31) return mantissa ? std::nanf("") : sign * std::numeric_limits<float>::infinity();
  return sign * (exponent ? std::ldexp(1.0F + static_cast<float>(mantissa) / 1024.0F, exponent - 15)
                          : std::ldexp(static_cast<float>(mantissa) / 1024.0F, -14));
}

std::uint16_t half_of(float value) {
  const Tensor tensor = Tensor::copy_of(std::vector<float>{value}, {1}, Dtype::float32);
  std::uint16_t out;
  std::memcpy(&out, converted(tensor, Dtype::float16).data, sizeof out);
  return out;
}

}  // namespace

TEST_CASE("select answers the golden vectors that the Python package wrote") {
  std::ifstream file(FASTV_GOLDEN);
  const json cases = json::parse(file);
  CHECK(cases.size() >= 200);
  for (const json& one : cases) {
    CAPTURE(one["name"].get<std::string>());
    std::string error;
    std::vector<std::int64_t> kept;
    try {
      kept = select(pruning_of(one["pruning"]), one["length"], one["positions"], one["image_sizes"],
                    scores_of(one["scores"]));
    } catch (const Error& refused) {
      CHECK(refused.kind() == Error::Kind::input);
      error = refused.what();
    }
    CHECK(error == one.value("error", ""));
    if (one.contains("keep_indices")) CHECK(kept == one["keep_indices"].get<std::vector<std::int64_t>>());
  }
}

TEST_CASE("positions beyond the prompt are refused, not written") {
  CHECK_THROWS_AS(select(Pruning::by_keep(0), 3, {1, 3}, {2}, std::vector<float>{0, 0}), Error);
  CHECK_THROWS_AS(select(Pruning::by_keep(0, "random"), 3, {1, 2}, {-1, 3}), Error);
}

TEST_CASE("numbers and texts are written as Python writes them") {
  CHECK(text::number(0.1) == "0.1");
  CHECK(text::number(2.0) == "2.0");
  CHECK(text::number(1e-5) == "1e-05");
  CHECK(text::number(123456.0) == "123456.0");
  CHECK(text::number(1e16) == "1e+16");
  CHECK(text::number(-std::nan("")) == "nan");
  CHECK(text::quoted("it's") == "\"it's\"");
  CHECK(text::path("a//b/./c/") == "a/b/c");
}

TEST_CASE("SHA-256 gives the digests of FIPS 180-4") {
  const auto digest = [](const std::string& text) {
    Sha256 sha;
    for (const char c : text) sha.update(&c, 1);
    return sha.hex();
  };
  CHECK(digest("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(digest("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(digest(std::string(1000000, 'a')) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  Sha256 whole;
  const std::string million(1000000, 'a');
  whole.update(million.data(), million.size());
  CHECK(whole.hex() == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("every half survives the way through float, and what lies between is rounded to nearest even") {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = from_half(static_cast<std::uint16_t>(bits));
    if (std::isnan(value)) continue;
    REQUIRE(half_of(value) == bits);
    const float next = from_half(static_cast<std::uint16_t>(bits + 1));
    if ((bits & 0x7fff) >= 0x7bff) continue;
    const float middle = value + (next - value) / 2;
    REQUIRE(half_of(middle) == (bits & 1 ? bits + 1 : bits));
    REQUIRE(half_of(std::nextafter(middle, next)) == bits + 1);
    REQUIRE(half_of(std::nextafter(middle, value)) == bits);
  }
  CHECK(half_of(65520.0F) == 0x7c00);
  CHECK(half_of(65519.0F) == 0x7bff);
  CHECK(half_of(1e9F) == 0x7c00);
}

TEST_CASE("a product's allocator gets every allocation and every free") {
  std::size_t living = 0, most = 0;
  {
    const auto memory = host_memory({[&](std::size_t bytes) {
                                       most = std::max(most, living += bytes);
                                       return std::malloc(bytes);
                                     },
                                     [&](void* block, std::size_t bytes) {
                                       living -= bytes;
                                       std::free(block);
                                     }});
    const auto block = memory->allocate(1000);
    CHECK(living >= 1000);
  }
  CHECK(most >= 1000);
  CHECK(living == 0);
}

TEST_CASE("profiles say what does not fit") {
  ProfileRecord profile{"decode", {{"input_ids", {{1, 1}, {1, 1}, {4, 2}}}, {"slots", {{1}, {64}, {128}}}}};
  CHECK(profile.refusals({{"input_ids", {4, 1}}, {"slots", {128}}}).empty());
  CHECK(profile.refusals({{"input_ids", {5, 1}}, {"slots", {129}}}) ==
        std::vector<std::string>{"input_ids axis 0 is 5, not 1..4", "slots axis 0 is 129, not 1..128"});
  CHECK(profile.excess({{"input_ids", {8, 1}}, {"slots", {1}}}) == 2.0);
}
