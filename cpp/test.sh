#!/usr/bin/env bash
# Builds the C++ library three ways and runs its tests: cpp/test.sh BUILD PYTHON, after cpp/setup.sh BUILD/deps PYTHON
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
build=$1
python=$2
deps=$(cd "$build/deps" && pwd)

compile() {  # NAME TARGET OPTION...
  local name=$1 target=$2
  shift 2
  printf '\n== %s (%d s) ==\n' "$name" "$SECONDS"
  cmake -S cpp -B "$build/$name" -DOnnxRuntime_ROOT="$deps/onnxruntime" "$@" > "$build/$name.log" \
    || { tail -n 20 "$build/$name.log" >&2; exit 1; }
  cmake --build "$build/$name" --target "$target" --parallel "$(nproc)" > "$build/$name.log" 2>&1 \
    || { grep -E -A 10 'error|Error' "$build/$name.log" | head -n 60 >&2; exit 1; }
}

# The TensorRT and CUDA backends: they can be compiled here, and no more.
compile tensorrt fastv_trt -DCMAKE_BUILD_TYPE=Debug -DFASTV_TENSORRT=ON -DFASTV_TENSORRT_HEADERS_ONLY=ON \
  -DTensorRT_ROOT="$deps/tensorrt" -DCudaRuntime_ROOT="$deps/cuda" -DFASTV_EXAMPLES=OFF -DFASTV_TESTS=OFF
compile checked all -DCMAKE_BUILD_TYPE=None -DFASTV_SANITIZE=ON
compile shared install -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DFASTV_EXAMPLES=OFF -DFASTV_TESTS=OFF \
  -DCMAKE_INSTALL_PREFIX="$(pwd)/$build/installed"

printf '\n== tests (%d s) ==\n' "$SECONDS"
ctest --test-dir "$build/checked" --output-on-failure
FASTV_CPP_CHECKED="$build/checked" FASTV_CPP_INSTALLED="$(pwd)/$build/installed" "$python" -m pytest -m "" cpp/tests
printf '\n== C++: passed in %d s ==\n' "$SECONDS"
