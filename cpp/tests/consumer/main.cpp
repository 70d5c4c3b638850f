#include <cstdio>

#include <fastv/fastv.h>
#include <fastv/error.hpp>
#include <fastv/generation.hpp>
#include <fastv/ort.hpp>

int main(int, char** arguments) try {
  const fastv::Bundle bundle = fastv::Bundle::open(arguments[1]);
  fastv::Chain chain(bundle, fastv::ort_device(bundle));
  fastv::Request request;
  request.input_ids = {1, 5, 6, 7};
  fastv::Generation generation(chain, {request}, {fastv::Pruning::by_ratio(0.5)});
  generation.run();
  std::printf("%zu tokens\n", generation.tokens()[0].size());
} catch (const fastv::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return error.exit_code();
}
