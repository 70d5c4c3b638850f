// Text and a picture to a request, and tokens to text, for the demo model: its byte-level BPE tokenizer, its chat
// template, and pictures that already have its size. A product brings its own; what this one cannot do it refuses, and
// `fastv-trt run --dump-inputs FILE` prepares requests for any model.
#pragma once

#include <filesystem>
#include <string>
#include <unordered_map>

#include "fastv/chain.hpp"

class DemoProcessor {
 public:
  // Reads the bundle's processor/ folder. Throws fastv::Error (input) if it is not of the kind that this reads.
  explicit DemoProcessor(const fastv::Bundle& bundle);

  // A question about one picture, through the chat template. Throws fastv::Error (input).
  fastv::Request request(const std::string& question, const std::filesystem::path& picture) const;

  // The text of tokens, special ones left out.
  std::string decode(const std::vector<std::int64_t>& tokens) const;

 private:
  std::vector<std::int64_t> encode(const std::string& text) const;
  std::vector<std::int64_t> word(const std::string& bytes) const;

  std::unordered_map<std::string, std::int64_t> ids_;     // piece -> id
  std::unordered_map<std::int64_t, std::string> pieces_;  // id -> bytes; special tokens are not in it
  std::unordered_map<std::string, int> merges_;           // "left right" -> rank
  std::vector<std::string> byte_;                         // byte -> the character that stands for it
  std::int64_t bos_ = 0, image_ = 0;
  std::int64_t side_ = 0, tokens_ = 0;  // pixels, and tokens of a picture
  float scale_ = 0.0F;
  std::vector<float> mean_, std_;
};
