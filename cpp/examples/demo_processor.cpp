#include "demo_processor.hpp"

#include <stb/stb_image.h>

#include <cctype>
#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "fastv/error.hpp"

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

const std::string kHint =
    "; prepare the inputs with `fastv-trt run --dump-inputs FILE`, and give this program --inputs FILE";

[[noreturn]] void refuse(const std::string& text) { throw fastv::Error(fastv::Error::Kind::input, text); }

std::string read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) refuse("expected " + path.string() + " for this example's small processor, found none" + kHint);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void require(bool holds, const std::string& what) {
  if (!holds) refuse("expected " + what + " for this example's small processor, found another kind" + kHint);
}

std::string utf8(unsigned code) {
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

// Byte-level BPE writes each byte as a printable character: itself where it is one, else one from 256 on.
std::vector<std::string> byte_characters() {
  std::vector<std::string> out(256);
  unsigned next = 256;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    out[byte] = utf8(printable ? byte : next++);
  }
  return out;
}

enum class Kind { letter, digit, space, other };

Kind kind_of(char c) {
  const auto byte = static_cast<unsigned char>(c);
  if (std::isalpha(byte)) return Kind::letter;
  if (std::isdigit(byte)) return Kind::digit;
  return std::isspace(byte) ? Kind::space : Kind::other;
}

// The words that byte-level BPE works on: a run of one kind, with the space before it; English endings by themselves.
std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> out;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    for (const char* ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"})
      if (text.compare(at, std::char_traits<char>::length(ending), ending) == 0)
        end = at + std::char_traits<char>::length(ending);
    if (end == at) {
      const std::size_t first = text[at] == ' ' && at + 1 < text.size() && kind_of(text[at + 1]) != Kind::space;
      const Kind kind = kind_of(text[at + first]);
      end = at + first;
      while (end < text.size() && kind_of(text[end]) == kind) ++end;
      // The last blank of several belongs to the word after them.
      if (kind == Kind::space && end < text.size() && end - at > 1) --end;
    }
    out.push_back(text.substr(at, end - at));
    at = end;
  }
  return out;
}

}  // namespace

DemoProcessor::DemoProcessor(const fastv::Bundle& bundle) : byte_(byte_characters()) {
  const fs::path folder = bundle.path() / "processor";
  try {
    const json tokenizer = json::parse(read_text(folder / "tokenizer.json"));
    const json& model = tokenizer.at("model");
    const json& before = tokenizer.at("pre_tokenizer");
    require(model.at("type") == "BPE" && before.at("type") == "ByteLevel" && before.at("use_regex") == true &&
                before.at("add_prefix_space") == false && tokenizer.at("normalizer").is_null(),
            "a byte-level BPE tokenizer");
    const std::string template_text = read_text(folder / "chat_template.jinja");
    require(template_text.find("{{ 'USER: ' }}") != std::string::npos &&
                template_text.find("part['text'].rstrip('? ')") != std::string::npos,
            "the demo model's chat template");
    std::unordered_map<std::string, char> characters;
    for (std::size_t byte = 0; byte < 256; ++byte) characters[byte_[byte]] = static_cast<char>(byte);
    for (const auto& [piece, id] : model.at("vocab").items()) {
      ids_[piece] = id.get<std::int64_t>();
      std::string bytes;
      for (std::size_t at = 0; at < piece.size();) {
        const std::size_t size = static_cast<unsigned char>(piece[at]) < 0x80 ? 1 : 2;
        const auto found = characters.find(piece.substr(at, size));
        if (found != characters.end()) bytes += found->second;
        at += size;
      }
      pieces_[id.get<std::int64_t>()] = bytes;
    }
    int rank = 0;
    for (const json& merge : model.at("merges"))
      merges_[merge.at(0).get<std::string>() + " " + merge.at(1).get<std::string>()] = rank++;
    for (const json& token : tokenizer.at("added_tokens")) {
      const auto id = token.at("id").get<std::int64_t>();
      ids_[token.at("content").get<std::string>()] = id;
      pieces_.erase(id);
    }
    bos_ = ids_.at("<s>");
    image_ = ids_.at(bundle.manifest().image_token);

    const json image = json::parse(read_text(folder / "preprocessor_config.json"));
    const json settings = json::parse(read_text(bundle.path() / "bundle.json")).at("vision").at("settings");
    side_ = image.at("size").at("height").get<std::int64_t>();
    require(image.at("size").at("width") == side_ && image.at("do_center_crop") == false, "square pictures, uncropped");
    tokens_ = settings.at("tokens").get<std::int64_t>();
    scale_ = image.at("rescale_factor").get<float>();
    mean_ = image.at("image_mean").get<std::vector<float>>();
    std_ = image.at("image_std").get<std::vector<float>>();
    require(mean_.size() == 3 && std_.size() == 3, "three channels");
  } catch (const json::exception&) {
    require(false, "the demo model's processor files");
  } catch (const std::out_of_range&) {
    require(false, "the demo model's special tokens");
  }
}

fastv::Request DemoProcessor::request(const std::string& question, const fs::path& picture) const {
  const std::string text = question.substr(0, question.find_last_not_of("? ") + 1);
  for (const char c : text)
    if (static_cast<unsigned char>(c) >= 0x80)
      refuse("expected a question in ASCII for this example's small tokenizer, found other letters" + kHint);
  int width = 0, height = 0, channels = 0;
  const std::unique_ptr<unsigned char, decltype(&stbi_image_free)> pixels(
      stbi_load(picture.c_str(), &width, &height, &channels, 3), stbi_image_free);
  if (!pixels) refuse("expected a picture at " + picture.string() + ", found: " + stbi_failure_reason());
  if (width != side_ || height != side_)
    refuse("expected a picture of " + std::to_string(side_) + " x " + std::to_string(side_) +
           " pixels for this example, which does not resize, found " + std::to_string(width) + " x " +
           std::to_string(height) + kHint);

  fastv::Request out;
  out.input_ids = {bos_};
  const auto add = [&](const std::string& part) {
    const std::vector<std::int64_t> ids = encode(part);
    out.input_ids.insert(out.input_ids.end(), ids.begin(), ids.end());
  };
  add("USER: ");
  out.input_ids.insert(out.input_ids.end(), static_cast<std::size_t>(tokens_), image_);
  add("\n" + text);
  out.image_sizes = {tokens_};
  const auto area = static_cast<std::size_t>(side_ * side_);
  std::vector<float> planes(3 * area);
  for (std::size_t channel = 0; channel < 3; ++channel)
    for (std::size_t i = 0; i < area; ++i)
      planes[channel * area + i] =
          (static_cast<float>(pixels.get()[3 * i + channel]) * scale_ - mean_[channel]) / std_[channel];
  out.vision_inputs["pixel_values"] = fastv::Tensor::copy_of(planes, {1, 3, side_, side_}, fastv::Dtype::float32);
  return out;
}

std::string DemoProcessor::decode(const std::vector<std::int64_t>& tokens) const {
  std::string out;
  for (const std::int64_t token : tokens)
    if (const auto found = pieces_.find(token); found != pieces_.end()) out += found->second;
  return out;
}

std::vector<std::int64_t> DemoProcessor::encode(const std::string& text) const {
  std::vector<std::int64_t> out;
  for (const std::string& bytes : words_of(text)) {
    const std::vector<std::int64_t> ids = word(bytes);
    out.insert(out.end(), ids.begin(), ids.end());
  }
  return out;
}

// Merge the pair of lowest rank until there is none.
std::vector<std::int64_t> DemoProcessor::word(const std::string& bytes) const {
  std::vector<std::string> parts;
  for (const char c : bytes) parts.push_back(byte_[static_cast<unsigned char>(c)]);
  while (parts.size() > 1) {
    int best = -1;
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = merges_.find(parts[i] + " " + parts[i + 1]);
      if (found != merges_.end() && (best < 0 || found->second < best)) best = found->second, at = i;
    }
    if (best < 0) break;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
  std::vector<std::int64_t> out;
  for (const std::string& part : parts) out.push_back(ids_.at(part));
  return out;
}
