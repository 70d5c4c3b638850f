// SHA-256 (FIPS 180-4), so that the library needs no cryptography package for its one use of it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace fastv {

class Sha256 {
 public:
  void update(const void* data, std::size_t size);
  std::string hex();  // ends the digest: 64 lower-case hex digits

 private:
  void block(const unsigned char* bytes);

  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<unsigned char, 64> pending_{};
  std::uint64_t size_ = 0;
};

}  // namespace fastv
