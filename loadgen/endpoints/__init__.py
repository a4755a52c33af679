"""APIs of servers, by name: OpenAI's as code, the servers' own as templates. To change what a request asks
for, use `with_fields`.
"""

from __future__ import annotations

from pathlib import Path

from loadgen.endpoints.base import Endpoint
from loadgen.endpoints.openai import Chat, Completions
from loadgen.endpoints.template import read_template

ENDPOINTS: dict[str, Endpoint] = {
    "completions": Completions(),
    "chat": Chat(),
    **{
        name: read_template(Path(__file__).with_name(f"{name}.toml"))
        for name in ("sglang", "tgi", "llamacpp", "ollama")
    },
}
