#!/usr/bin/env bash
# What `make cpp-test` needs and a fresh machine lacks, into one folder: cpp/setup.sh FOLDER PYTHON
#
#   the system's packages   a compiler, cmake, JSON, test and picture headers: apt-get, with sudo where it is needed
#   FOLDER/onnxruntime      ONNX Runtime: the headers of Debian's package (their API is stable, so older ones serve a newer
#                           library), and the library that PYTHON has installed, so that both languages run the same one
#   FOLDER/tensorrt, cuda   headers, and CUDA's runtime library, to compile the TensorRT backend: enough for that, and no more
#
# Debian's packages are verified by its archive keys, those of PyPI by the hashes in cpp/requirements.txt.
set -euo pipefail
folder=$(mkdir -p "$1" && cd "$1" && pwd)
python=$2
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)

lacking() { echo "setup: expected $1, found none; $2" >&2; exit 1; }

# -- the system's packages --------------------------------------------------------------------------------------------
declare -A files=(
  [nlohmann-json3-dev]=/usr/include/nlohmann/json.hpp
  [libstb-dev]=/usr/include/stb/stb_image.h
  [doctest-dev]=/usr/include/doctest/doctest.h
)
missing=()
command -v c++ > /dev/null || missing+=(g++)
command -v cmake > /dev/null || missing+=(cmake)
for package in "${!files[@]}"; do [ -e "${files[$package]}" ] || missing+=("$package"); done
if [ ${#missing[@]} -gt 0 ]; then
  command -v apt-get > /dev/null || lacking "the packages ${missing[*]}" "install them with this system's package manager"
  root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo > /dev/null || lacking "the packages ${missing[*]}" "ask root for: apt-get install ${missing[*]}"
    root=(sudo)
  fi
  echo "setup: installing ${missing[*]}"
  "${root[@]}" apt-get -qq update
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${missing[@]}" > /dev/null
fi

# -- ONNX Runtime -----------------------------------------------------------------------------------------------------
ort=$folder/onnxruntime
if [ ! -e "$ort/include/onnxruntime_cxx_api.h" ]; then
  system=/usr/include/onnxruntime/onnxruntime_cxx_api.h
  if [ -e "$system" ]; then
    mkdir -p "$ort" && cp -r "$(dirname "$system")" "$ort/include"
  else
    command -v apt-get > /dev/null || lacking "ONNX Runtime's C++ headers" \
      "unpack a release archive of it and run cmake by hand with -DOnnxRuntime_ROOT (docs/cpp.md)"
    echo "setup: headers of ONNX Runtime"
    # The oldest Debian that has the package, from the mirror that this machine uses, with lists of its own: nothing of
    # the system is changed. apt checks the signatures.
    apt=$folder/apt
    rm -rf "$apt" && mkdir -p "$apt"/{lists/partial,cache/archives/partial}
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Component: main' \
      | sed -n '/\/debian\/*$/p' | sed -n 1p)
    [ -n "$mirror" ] || lacking "a Debian mirror among apt's sources" \
      "unpack a release archive of ONNX Runtime and run cmake by hand with -DOnnxRuntime_ROOT (docs/cpp.md)"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie main" > "$apt/sources.list"
    options=(-qq -o "Dir::Etc::SourceList=$apt/sources.list" -o Dir::Etc::SourceParts=- -o "Dir::State::Lists=$apt/lists"
      -o "Dir::Cache=$apt/cache" -o Acquire::Languages=none -o APT::Sandbox::User="$(id -un)" -o Acquire::Retries=3)
    apt-get "${options[@]}" update
    (cd "$apt" && apt-get "${options[@]}" download libonnxruntime-dev && dpkg-deb -x libonnxruntime-dev_*.deb unpacked)
    mkdir -p "$ort" && mv "$apt/unpacked/usr/include/onnxruntime" "$ort/include"
    rm -rf "$apt"
  fi
fi
library=$("$python" -c 'import onnxruntime, pathlib
print(next(pathlib.Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*")))')
mkdir -p "$ort/lib"
ln -sf "$library" "$ort/lib/libonnxruntime.so.1"
ln -sf libonnxruntime.so.1 "$ort/lib/libonnxruntime.so"

# -- TensorRT and CUDA, to compile ------------------------------------------------------------------------------------
if ! cmp -s "$here/requirements.txt" "$folder/requirements.txt"; then
  echo "setup: headers of TensorRT and CUDA"
  rm -rf "$folder"/{site,tensorrt,cuda}
  "$python" -m pip install -qq --disable-pip-version-check --no-deps --no-compile --require-hashes --target "$folder/site" \
    -r "$here/requirements.txt"
  mkdir -p "$folder/tensorrt"
  cp -r "$folder/site/kernel_lens/include/tensorrt" "$folder/tensorrt/include"
  mv "$folder"/site/nvidia/cu13 "$folder/cuda"
  rm -rf "$folder/site"
  cp "$here/requirements.txt" "$folder/requirements.txt"
fi
