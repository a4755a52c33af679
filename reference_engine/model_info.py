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
BIASES = tuple(f"self_attn.{name}_proj.bias" for name in "qkvo")


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
    keys = _Keys(folder / "config.json")
    architecture = keys.one_of("architectures", ARCHITECTURES)
    shape = _shape(keys, architecture)
    return ModelInfo(
        name=folder.resolve().name,
        shape=shape,
        num_ids=keys.integer("vocab_size"),
        eos_ids=_eos_ids(folder, keys),
        max_positions=keys.integer("max_position_embeddings"),
        dtype=keys.one_of("dtype" if keys.get("dtype") else "torch_dtype", DTYPES, default="float32"),
        folder=folder,
        tensors=_tensors(folder, shape, architecture, is_tied=keys.get("tie_word_embeddings", False)),
    )


class _Keys:
    """The keys of a config.json, each read as what it must be."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._config = _read_object(file)

    def refuse(self, name: str, supported: str) -> ConfigError:
        value = json.dumps(self._config.get(name))
        return ConfigError(f"{self._file}: {name} = {value} is not supported; supported: {supported}")

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value; null counts as absent."""
        value = self._config.get(name)
        return default if value is None else value

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.get(name, default)
        if not isinstance(value, int) or value < 1:
            raise self.refuse(name, "a number above 0")
        return value

    def one_of(self, name: str, supported: tuple[str, ...], default: str = "") -> str:
        """Return the value, which may stand alone in a list."""
        value = self.get(name, default)
        only = value[0] if isinstance(value, list) and len(value) == 1 else value
        if only not in supported:
            raise self.refuse(name, ", ".join(supported))
        return str(only)


def _shape(keys: _Keys, architecture: str) -> ModelShape:
    for name in ("quantization_config", "mlp_bias"):
        if keys.get(name):
            raise keys.refuse(name, "none")
    keys.one_of("hidden_act", ("silu",), default="silu")
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
    given = {key: value for key, value in keys.get(name, {}).items() if value is not None}
    given.setdefault("rope_type", given.pop("type", "default"))
    given.setdefault("rope_theta", keys.get("rope_theta", 10_000.0))
    given.setdefault("original_max_position_embeddings", keys.integer("max_position_embeddings"))
    if given.get("partial_rotary_factor") == 1.0:
        del given["partial_rotary_factor"]
    try:
        return msgspec.convert(given, Rope)
    except msgspec.ValidationError as error:
        raise keys.refuse(name, f"rope_type default, linear, llama3, yarn ({error})") from error


def _windows(keys: _Keys, architecture: str, num_layers: int) -> tuple[int, frozenset[int]]:
    """Return the sliding window and the layers that have it, by each family's own rule."""
    if keys.get("sliding_window") is None or not (architecture == MISTRAL or keys.get("use_sliding_window")):
        return 0, frozenset()
    if architecture == MISTRAL:
        return keys.integer("sliding_window"), frozenset(range(num_layers))
    kinds = keys.get("layer_types")
    if kinds is None:
        first = keys.get("max_window_layers", 28)
        kinds = ["sliding_attention" if i >= first else "full_attention" for i in range(num_layers)]
    if len(kinds) != num_layers or not set(kinds) <= {"full_attention", "sliding_attention"}:
        raise keys.refuse("layer_types", "full_attention or sliding_attention for each layer")
    windowed = frozenset(i for i, kind in enumerate(kinds) if kind == "sliding_attention")
    return keys.integer("sliding_window") if windowed else 0, windowed


def _tensors(folder: Path, shape: ModelShape, architecture: str, *, is_tied: bool) -> dict[str, Path]:
    """Return the file of each tensor; refuse a checkpoint that lacks one or has one too many."""
    index = folder / "model.safetensors.index.json"
    shards = set(_read_object(index)["weight_map"].values()) if index.is_file() else ()
    files = [folder / name for name in shards] or list(folder.glob("*.safetensors"))
    tensors = {name: file for file in files for name in _names_in(file)}
    if is_tied:
        tensors.pop(HEAD, None)
    layers = [f"model.layers.{i}." for i in range(shape.layers)]
    per_layer = LAYER_MATRICES + (QK_NORMS if architecture == QWEN3 else ())
    needed = {EMBEDDING, NORM, HEAD} - {HEAD if is_tied else ""}
    needed |= {layer + name for layer in layers for name in per_layer}
    known = needed | {layer + name for layer in layers for name in BIASES}
    if missing := sorted(needed - set(tensors)):
        raise ConfigError(f"{folder}: tensor {missing[0]} is missing, and {len(missing) - 1} more")
    if unknown := sorted(name for name in set(tensors) - known if not name.endswith(".inv_freq")):
        raise ConfigError(f"{folder}: tensor {unknown[0]} is not supported, and {len(unknown) - 1} more")
    return tensors


def _names_in(file: Path) -> list[str]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "numpy") as tensors:
            return list(tensors.keys())
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error


def _eos_ids(folder: Path, keys: _Keys) -> frozenset[int]:
    generation = folder / "generation_config.json"
    stated = _read_object(generation).get("eos_token_id") if generation.is_file() else None
    ids = keys.get("eos_token_id") if stated is None else stated
    return frozenset([ids] if isinstance(ids, int) else ids or ())


def _read_object(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{file} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{file} is not a JSON object")
    return value
