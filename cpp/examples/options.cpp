#include "options.hpp"

#include <algorithm>

#include "fastv/error.hpp"
#include "fastv/ort.hpp"
#ifdef FASTV_TENSORRT
#include "fastv/trt.hpp"
#endif

namespace {

[[noreturn]] void refuse(const std::string& text) { throw fastv::Error(fastv::Error::Kind::input, text); }

template <class Convert>
auto number(const std::string& name, const std::string& text, Convert convert) {
  try {
    std::size_t used = 0;
    const auto value = convert(text, &used);
    if (used == text.size()) return value;
  } catch (const std::exception&) {  // refused below
  }
  refuse("expected a number for " + name + ", found " + text);
}

}  // namespace

Options::Options(int count, char** arguments, const std::vector<std::string>& known, const std::string& usage) {
  if (count < 2 || arguments[1][0] == '-') refuse("expected a bundle; usage: " + usage);
  bundle = arguments[1];
  for (int i = 2; i < count; i += 2) {
    if (std::find(known.begin(), known.end(), arguments[i]) == known.end() || i + 1 == count)
      refuse(std::string("expected options with values, found ") + arguments[i] + "; usage: " + usage);
    values[arguments[i]] = arguments[i + 1];
  }
}

std::string Options::text(const std::string& name, const std::string& otherwise) const {
  const auto found = values.find(name);
  return found == values.end() ? otherwise : found->second;
}

double Options::real(const std::string& name, double otherwise) const {
  return has(name) ? number(name, text(name), [](const auto& t, auto* used) { return std::stod(t, used); }) : otherwise;
}

std::int64_t Options::integer(const std::string& name, std::int64_t otherwise) const {
  return has(name)
             ? number(name, text(name), [](const auto& t, auto* used) { return std::int64_t{std::stoll(t, used)}; })
             : otherwise;
}

std::shared_ptr<fastv::Device> device_named(const fastv::Bundle& bundle, const Options& options) {
  const std::string name = options.text("--device", "cpu");
#ifdef FASTV_TENSORRT
  if (name == "tensorrt" || name.rfind("tensorrt:", 0) == 0)
    return fastv::trt_device(bundle, name.size() > 9 ? name.substr(9) : "");
#endif
  fastv::OrtOptions ort;
  if (options.has("--threads")) ort.threads = static_cast<int>(options.integer("--threads", 0));
  return fastv::ort_device(bundle, name, ort);
}
