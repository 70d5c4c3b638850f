#include "inputs.hpp"

#include <cstring>
#include <fstream>

#include <nlohmann/json.hpp>

#include "fastv/error.hpp"

namespace {

using nlohmann::json;

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& found) {
  throw fastv::Error(fastv::Error::Kind::input, "expected inputs as `fastv-trt run --dump-inputs` writes them in " +
                                                    path.string() + ", found " + found);
}

fastv::Dtype dtype_of(const std::filesystem::path& path, const std::string& name) {
  if (name == "F32") return fastv::Dtype::float32;
  if (name == "F16") return fastv::Dtype::float16;
  if (name == "I64") return fastv::Dtype::int64;
  if (name == "I32") return fastv::Dtype::int32;
  refuse(path, "a tensor of type " + name);
}

std::vector<std::int64_t> integers(const fastv::Tensor& tensor) {
  const auto* values = static_cast<const std::int64_t*>(tensor.data);
  return {values, values + fastv::elements(tensor.shape)};
}

}  // namespace

fastv::Request read_request(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  std::uint64_t header = 0;
  if (!file || bytes.size() < sizeof header) refuse(path, "no such file");
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header > bytes.size() - sizeof header) refuse(path, "a file of another kind");
  const char* start = bytes.data() + sizeof header;
  const std::size_t data = sizeof header + header;
  fastv::Request request;
  const std::map<std::string, std::vector<std::int64_t>*> numbers = {{"input_ids", &request.input_ids},
                                                                     {"image_sizes", &request.image_sizes},
                                                                     {"frame_sizes", &request.frame_sizes},
                                                                     {"position_ids", &request.position_ids}};
  try {
    const json description = json::parse(start, start + header);
    for (const auto& [name, record] : description.items()) {
      if (name == "__metadata__") continue;
      const auto from = record.at("data_offsets").at(0).get<std::size_t>();
      const auto to = record.at("data_offsets").at(1).get<std::size_t>();
      fastv::Tensor tensor = fastv::Tensor::over(nullptr, record.at("shape").get<fastv::Shape>(),
                                                 dtype_of(path, record.at("dtype").get<std::string>()));
      if (from > to || to > bytes.size() - data || static_cast<std::int64_t>(to - from) != tensor.bytes())
        refuse(path, "a damaged file");
      const auto owner = std::make_shared<std::vector<char>>(bytes.begin() + static_cast<std::ptrdiff_t>(data + from),
                                                             bytes.begin() + static_cast<std::ptrdiff_t>(data + to));
      tensor.data = owner->data();
      tensor.owner = owner;
      const auto number = numbers.find(name);
      if (number != numbers.end()) {
        if (tensor.dtype != fastv::Dtype::int64) refuse(path, name + " of another type than int64");
        *number->second = integers(tensor);
      } else if (name.rfind("vision.", 0) == 0) {
        request.vision_inputs[name.substr(7)] = tensor;
      } else {
        refuse(path, "a tensor named " + name);
      }
    }
  } catch (const json::exception&) {
    refuse(path, "a file of another kind");
  }
  return request;
}
