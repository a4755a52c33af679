"""How each real engine is started on the tiny model, once install.sh has put it into a folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

READY_S = 400.0
LOCAL = ("--host", "127.0.0.1", "--port")
QUIET = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, kw_only=True)
class Engine:
    """How one engine is started. apis: those it is measured by. ignores_eos: lengths are as asked for."""

    program: Path
    args: Sequence[str]
    port: int
    rate: float
    apis: Sequence[str]
    ignores_eos: bool = True
    has_metrics: bool = True
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def command(self) -> list[str]:
        settings = [f"{setting}={value}" for setting, value in self.environment.items()]
        return ["env", *settings, str(self.program), *self.args]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def health_url(self) -> str:
        return f"{self.url}/health"


def engines(servers: Path) -> dict[str, Engine]:
    """Return the engines by name; each has one thread for its model."""
    return {
        "vllm": Engine(
            program=servers / "vllm/bin/python",
            args=[
                *("-m", "vllm.entrypoints.openai.api_server", "--model", f"{servers}/tiny"),
                *("--served-model-name", "tiny", *LOCAL, "8101", "--dtype", "float32"),
                *("--max-model-len", "2048", "--enforce-eager"),
            ],
            port=8101,
            rate=4,
            apis=("completions", "chat"),
            environment={
                **QUIET,
                "VLLM_NO_USAGE_STATS": "1",
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            },
        ),
        "llama-server": Engine(
            program=servers / "llama-server",
            args=[
                *("-m", f"{servers}/tiny/tiny.gguf", "-a", "tiny", *LOCAL, "8102", "-t", "1", "-tb", "1"),
                *("-c", "8192", "-np", "32", "--kv-unified", "--metrics"),
            ],
            port=8102,
            rate=8,
            apis=("completions", "chat", "llamacpp"),
        ),
        "transformers": Engine(
            program=servers / "transformers/bin/transformers",
            args=[
                *("serve", f"{servers}/tiny", *LOCAL, "8103", "--device", "cpu", "--dtype", "float32"),
                *("--continuous-batching", "--cb-num-blocks", "64"),
            ],
            port=8103,
            rate=3,
            apis=("completions", "chat"),
            ignores_eos=False,
            has_metrics=False,
            environment=QUIET,
        ),
    }
