"""APIs of servers, by name. To change what a request asks for, `dataclasses.replace` an entry."""

from __future__ import annotations

from loadgen.endpoints.base import Endpoint
from loadgen.endpoints.llamacpp import LlamaCppCompletion
from loadgen.endpoints.ollama import OllamaGenerate
from loadgen.endpoints.openai import Chat, Completions
from loadgen.endpoints.sglang import SglangGenerate
from loadgen.endpoints.tgi import TgiGenerate

ENDPOINTS: dict[str, Endpoint] = {
    "completions": Completions(),
    "chat": Chat(),
    "sglang": SglangGenerate(),
    "tgi": TgiGenerate(),
    "llamacpp": LlamaCppCompletion(),
    "ollama": OllamaGenerate(),
}
