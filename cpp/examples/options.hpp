// Command-line options as --name value.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "fastv/bundle.hpp"
#include "fastv/device.hpp"

struct Options {
  std::string bundle;
  std::map<std::string, std::string> values;

  // Throws fastv::Error (input) with `usage` if the bundle is missing or an option is not `known`.
  Options(int count, char** arguments, const std::vector<std::string>& known, const std::string& usage);

  bool has(const std::string& name) const { return values.count(name) > 0; }
  std::string text(const std::string& name, const std::string& otherwise = "") const;
  double real(const std::string& name, double otherwise) const;
  std::int64_t integer(const std::string& name, std::int64_t otherwise) const;
};

// "cpu", "cuda", "tensorrt" or "tensorrt:TARGET".
std::shared_ptr<fastv::Device> device_named(const fastv::Bundle& bundle, const Options& options);
