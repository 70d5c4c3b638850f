// The one exception of this library. Every message is one line that says what was expected, what was found and what
// to do; the texts are those of the Python package.
#pragma once

#include <stdexcept>
#include <string>

namespace fastv {

class Error : public std::runtime_error {
 public:
  enum class Kind {
    failure,      // something that should have worked did not
    input,        // the caller asked for something that cannot be
    bundle,       // a bundle on disk is missing, altered, foreign or of a newer schema
    unavailable,  // this machine lacks what is needed: a GPU, a library, a provider
  };

  Error(Kind kind, const std::string& text) : std::runtime_error(text), kind_(kind) {}

  Kind kind() const noexcept { return kind_; }

  // What a command line exits with: 1 a failure, 2 bad input, 3 unavailable.
  int exit_code() const noexcept {
    if (kind_ == Kind::failure) return 1;
    return kind_ == Kind::unavailable ? 3 : 2;
  }

 private:
  Kind kind_;
};

}  // namespace fastv
