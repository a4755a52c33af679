"""What stands behind `--model`: a named shape with random weights, or a Hugging Face folder, not loaded yet.

Reads config.json and the headers of the safetensors files, so that what this engine does not do is refused
before anything is started: a model that is nearly right would answer, and wrongly. Needs no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from reference_engine import tokenizer
from reference_engine.config import SHAPES, ConfigError, ModelShape
from reference_engine.rope import Rope

LLAMA, MISTRAL, QWEN2, QWEN3 = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
)
ARCHITECTURES = (LLAMA, MISTRAL, QWEN2, QWEN3)
DTYPES = ("float32", "bfloat16", "float16")

EMBEDDING, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
LAYER_MATRICES = (
    *(
        "self_attn.q_proj.weight",
        "self_attn.k_proj.weight",
        "self_attn.v_proj.weight",
        "self_attn.o_proj.weight",
    ),
    *("mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"),
    *("input_layernorm.weight", "post_attention_layernorm.weight"),
)
QK_NORMS = ("self_attn.q_norm.weight", "self_attn.k_norm.weight")
QKV_BIASES = ("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias")
OUT_BIAS = "self_attn.o_proj.bias"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """eos_ids: the tokens that end an answer. max_positions: the longest context, None without limit.

    dtype: of the checkpoint. tensors: the file of each of its tensors; empty where weights are drawn.
    """

    name: str
    shape: ModelShape
    num_ids: int
    eos_ids: frozenset[int]
    max_positions: int | None = None
    dtype: str = "float32"
    folder: Path | None = None
    tensors: Mapping[str, Path] = field(default_factory=dict)


@lru_cache
def describe_model(model: str) -> ModelInfo:
    """Return what a shape's name or a folder stands for; ConfigError says what of it is not supported."""
    if model in SHAPES:
        return ModelInfo(
            name=model, shape=SHAPES[model], num_ids=tokenizer.NUM_IDS, eos_ids=frozenset({tokenizer.EOS_ID})
        )
    folder = Path(model)
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"unknown model {model!r}: no shape ({', '.join(SHAPES)}) and no folder with a config.json"
        )
    config = _read_object(folder / "config.json")
    architecture = _architecture(config, folder)
    shape = _shape(_Keys(config, folder), architecture)
    tensors = _tensors(folder)
    _check_tensors(tensors, shape, architecture, folder)
    keys = _Keys(config, folder)
    return ModelInfo(
        name=folder.resolve().name,
        shape=shape,
        num_ids=keys.integer("vocab_size"),
        eos_ids=_eos_ids(folder, config),
        max_positions=keys.integer("max_position_embeddings"),
        dtype=keys.one_of("dtype" if "dtype" in config else "torch_dtype", "float32", DTYPES),
        folder=folder,
        tensors=tensors,
    )


class _Keys:
    """The keys of a config.json, each read as what it must be."""

    def __init__(self, config: dict[str, Any], folder: Path) -> None:
        self._config = config
        self._where = folder / "config.json"

    def refuse(self, name: str, supported: str) -> ConfigError:
        value = json.dumps(self._config.get(name))
        return ConfigError(f"{self._where}: {name} = {value} is not supported; supported: {supported}")

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value; null counts as absent."""
        value = self._config.get(name)
        return default if value is None else value

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.get(name, default)
        if not isinstance(value, int) or value < 1:
            raise self.refuse(name, "a number above 0")
        return value

    def one_of(self, name: str, default: str, supported: tuple[str, ...]) -> str:
        value: str = self.get(name, default)
        if value not in supported:
            raise self.refuse(name, ", ".join(supported))
        return value

    def require_off(self, *names: str) -> None:
        for name in names:
            if self.get(name):
                raise self.refuse(name, "none")


def _architecture(config: dict[str, Any], folder: Path) -> str:
    named = config.get("architectures")
    if isinstance(named, list) and len(named) == 1 and named[0] in ARCHITECTURES:
        return str(named[0])
    raise _Keys(config, folder).refuse("architectures", ", ".join(ARCHITECTURES))


def _shape(keys: _Keys, architecture: str) -> ModelShape:
    keys.require_off("quantization_config", "mlp_bias")
    keys.one_of("hidden_act", "silu", ("silu",))
    hidden, layers, heads = (
        keys.integer(name) for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")
    )
    kv_heads = keys.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise keys.refuse("num_key_value_heads", f"a divisor of the {heads} attention heads")
    window_tokens, windowed_layers = _windows(keys, architecture, layers)
    return ModelShape(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=keys.integer("head_dim", 128 if architecture == QWEN3 else hidden // heads),
        intermediate=keys.integer("intermediate_size"),
        rope=_rope(keys),
        norm_eps=float(keys.get("rms_norm_eps", 1e-6)),
        window_tokens=window_tokens,
        windowed_layers=windowed_layers,
    )


def _rope(keys: _Keys) -> Rope:
    """Read `rope_parameters`, or what stood there before it: `rope_scaling`, and `rope_theta` beside it."""
    name = "rope_parameters" if keys.get("rope_parameters") else "rope_scaling"
    given = dict(keys.get(name, {}))
    given.setdefault("rope_type", given.pop("type", "default"))
    given.setdefault("rope_theta", keys.get("rope_theta", 10_000.0))
    given.setdefault("original_max_position_embeddings", keys.integer("max_position_embeddings"))
    if given.get("partial_rotary_factor") == 1.0:
        del given["partial_rotary_factor"]
    given.pop("type", None)
    try:
        return msgspec.convert(given, Rope)
    except msgspec.ValidationError as error:
        raise keys.refuse(name, f"rope_type default, linear, llama3, yarn ({error})") from error


def _windows(keys: _Keys, architecture: str, num_layers: int) -> tuple[int, frozenset[int]]:
    """Return the sliding window and the layers that have it, by each family's own rule."""
    if architecture == LLAMA:
        return 0, frozenset()
    if architecture == MISTRAL:
        return (
            (keys.integer("sliding_window"), frozenset(range(num_layers)))
            if keys.get("sliding_window")
            else (0, frozenset())
        )
    if not keys.get("use_sliding_window"):
        return 0, frozenset()
    kinds = keys.get("layer_types")
    if kinds is None:
        first = keys.get("max_window_layers", 28)
        kinds = ["sliding_attention" if i >= first else "full_attention" for i in range(num_layers)]
    if len(kinds) != num_layers or not set(kinds) <= {"full_attention", "sliding_attention"}:
        raise keys.refuse("layer_types", "full_attention or sliding_attention for each layer")
    windowed = frozenset(i for i, kind in enumerate(kinds) if kind == "sliding_attention")
    return (keys.integer("sliding_window", 4096) if windowed else 0), windowed


def _tensors(folder: Path) -> dict[str, Path]:
    """Return the file that holds each tensor."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return {name: folder / file for name, file in _read_object(index)["weight_map"].items()}
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ConfigError(f"{folder} has no *.safetensors")
    return {name: file for file in files for name in _header(file) if name != "__metadata__"}


def _header(file: Path) -> dict[str, Any]:
    with file.open("rb") as data:
        size = int.from_bytes(data.read(8), "little")
        header: dict[str, Any] = json.loads(data.read(size))
    return header


def _check_tensors(tensors: Mapping[str, Path], shape: ModelShape, architecture: str, folder: Path) -> None:
    """Refuse a checkpoint that lacks a tensor, or has one that would be left out of the arithmetic."""
    per_layer = LAYER_MATRICES + (QK_NORMS if architecture == QWEN3 else ())
    needed = {
        EMBEDDING,
        NORM,
        *(f"model.layers.{i}.{name}" for i in range(shape.layers) for name in per_layer),
    }
    if missing := sorted(needed - set(tensors)):
        raise ConfigError(f"{folder}: tensor {missing[0]} is missing, and {len(missing) - 1} more")
    optional = {f"model.layers.{i}.{name}" for i in range(shape.layers) for name in (*QKV_BIASES, OUT_BIAS)}
    known = needed | optional | {HEAD}
    unknown = sorted(name for name in set(tensors) - known if not name.endswith("rotary_emb.inv_freq"))
    if unknown:
        raise ConfigError(f"{folder}: tensor {unknown[0]} is not supported, and {len(unknown) - 1} more")


def _eos_ids(folder: Path, config: dict[str, Any]) -> frozenset[int]:
    generation = folder / "generation_config.json"
    stated = _read_object(generation).get("eos_token_id") if generation.is_file() else None
    ids = config.get("eos_token_id") if stated is None else stated
    return frozenset([ids] if isinstance(ids, int) else ids or ())


def _read_object(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{file} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{file} is not a JSON object")
    return value
