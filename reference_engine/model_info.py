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
from typing import Annotated, Any, Literal

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
FLOATS = ("F32", "F16", "BF16")  # as the headers of safetensors name them
INDEX = "model.safetensors.index.json"
ABOVE_0 = msgspec.Meta(gt=0)


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
    keys = Keys(folder / "config.json")
    architecture = keys.one_of("architectures", ARCHITECTURES)
    shape = _shape(keys, architecture)
    num_ids = keys.integer("vocab_size")
    return ModelInfo(
        name=folder.resolve().name,
        shape=shape,
        num_ids=num_ids,
        eos_ids=_eos_ids(folder, keys, num_ids),
        max_positions=keys.integer("max_position_embeddings"),
        dtype=keys.one_of("dtype" if keys.get("dtype") else "torch_dtype", DTYPES, default="float32"),
        folder=folder,
        tensors=_tensors(folder, _tensor_shapes(keys, architecture, shape, num_ids)),
    )


class Keys:
    """The keys of a JSON file, each read as what it must be; a file that is absent has none."""

    def __init__(self, file: Path) -> None:
        self._file = file
        try:
            self._values = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        except ValueError as error:
            raise ConfigError(f"{file} is not JSON: {error}") from error
        if not isinstance(self._values, dict):
            raise ConfigError(f"{file} is not a JSON object")

    def refuse(self, name: str, supported: str, default: Any = None) -> ConfigError:
        value = json.dumps(self.get(name, default))
        return ConfigError(f"{self._file}: {name} = {value} is not supported; supported: {supported}")

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value; null counts as absent."""
        value = self._values.get(name)
        return default if value is None else value

    def read(self, name: str, kind: Any, supported: str, default: Any = None) -> Any:
        """Return the value as the type that `kind` is."""
        try:
            return msgspec.convert(self.get(name, default), kind)
        except msgspec.ValidationError as error:
            raise self.refuse(name, supported, default) from error

    def integer(self, name: str, default: int | None = None) -> int:
        return int(self.read(name, Annotated[int, ABOVE_0], "a whole number above 0", default))

    def flag(self, name: str) -> bool:
        return bool(self.read(name, bool, "true, false", default=False))

    def one_of(self, name: str, supported: tuple[str, ...], default: str = "") -> str:
        """Return the value, which may stand alone in a list."""
        value = self.get(name, default)
        only = value[0] if isinstance(value, list) and len(value) == 1 else value
        if only not in supported:
            raise self.refuse(name, ", ".join(supported))
        return str(only)


def _shape(keys: Keys, architecture: str) -> ModelShape:
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
    head_dim = keys.integer("head_dim", 128 if architecture == QWEN3 else hidden // heads)
    if head_dim % 2:
        raise keys.refuse("head_dim", "an even number, for dimensions turn in pairs", head_dim)
    window_tokens, windowed_layers = _windows(keys, architecture, layers)
    return ModelShape(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=keys.integer("intermediate_size"),
        rope=_rope(keys),
        norm_eps=keys.read("rms_norm_eps", Annotated[float, ABOVE_0], "a number above 0", 1e-6),
        window_tokens=window_tokens,
        windowed_layers=windowed_layers,
    )


def _rope(keys: Keys) -> Rope:
    """Read `rope_parameters`, or what stood there before it: `rope_scaling`, and `rope_theta` beside it."""
    is_old = keys.get("rope_scaling") and not keys.get("rope_parameters")
    name = "rope_scaling" if is_old else "rope_parameters"
    stated = keys.read(name, dict[str, Any], "an object", {})
    given = {key: value for key, value in stated.items() if value is not None}
    given.setdefault("rope_type", given.pop("type", "default"))
    given.setdefault("rope_theta", keys.get("rope_theta", 10_000.0))
    given.setdefault("original_max_position_embeddings", keys.integer("max_position_embeddings"))
    if given.get("partial_rotary_factor") == 1.0:
        del given["partial_rotary_factor"]
    try:
        return msgspec.convert(given, Rope)
    except msgspec.ValidationError as error:
        supported = "rope_type default, linear, llama3, yarn, with their numbers"
        raise ConfigError(f"{keys.refuse(name, supported, given)} ({error})") from error


def _windows(keys: Keys, architecture: str, num_layers: int) -> tuple[int, frozenset[int]]:
    """Return the sliding window and the layers that have it, by each family's own rule."""
    is_windowed = architecture == MISTRAL or keys.flag("use_sliding_window")
    if keys.get("sliding_window") is None or not is_windowed:
        return 0, frozenset()
    if architecture == MISTRAL:
        return keys.integer("sliding_window"), frozenset(range(num_layers))
    first = keys.read("max_window_layers", Annotated[int, msgspec.Meta(ge=0)], "a number of layers", 28)
    by_place = ["sliding_attention" if i >= first else "full_attention" for i in range(num_layers)]
    supported = f"full_attention or sliding_attention for each of the {num_layers} layers"
    kind_list = list[Literal["full_attention", "sliding_attention"]]
    kinds = keys.read("layer_types", kind_list, supported, by_place)
    if len(kinds) != num_layers:
        raise keys.refuse("layer_types", supported)
    windowed = frozenset(i for i, kind in enumerate(kinds) if kind == "sliding_attention")
    return keys.integer("sliding_window") if windowed else 0, windowed


def _tensor_shapes(
    keys: Keys, architecture: str, shape: ModelShape, num_ids: int
) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor that a checkpoint of this config.json holds."""
    hidden, inner, head_dim = shape.hidden, shape.intermediate, shape.head_dim
    q, kv = shape.heads * head_dim, shape.kv_heads * head_dim
    layer: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (q, hidden),
        "self_attn.k_proj.weight": (kv, hidden),
        "self_attn.v_proj.weight": (kv, hidden),
        "self_attn.o_proj.weight": (hidden, q),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    biased = "qkv" if architecture == QWEN2 else "qkvo" if keys.flag("attention_bias") else ""
    layer |= {f"self_attn.{name}_proj.bias": layer[f"self_attn.{name}_proj.weight"][:1] for name in biased}
    normed = "qk" if architecture == QWEN3 else ""
    layer |= {f"self_attn.{name}_norm.weight": (head_dim,) for name in normed}
    head = {} if keys.flag("tie_word_embeddings") else {HEAD: (num_ids, hidden)}
    layers = {f"model.layers.{i}.{name}": of for i in range(shape.layers) for name, of in layer.items()}
    return {EMBEDDING: (num_ids, hidden), NORM: (hidden,), **head, **layers}


def _tensors(folder: Path, expected: dict[str, tuple[int, ...]]) -> dict[str, Path]:
    """Return the file of each tensor; refuse a checkpoint that holds anything but what is expected."""
    shards = Keys(folder / INDEX).read("weight_map", dict[str, str], "the file of each tensor", {})
    files = [folder / name for name in set(shards.values())] or list(folder.glob("*.safetensors"))
    if not files:
        raise ConfigError(f"{folder} has no *.safetensors; supported: one, or several with {INDEX}")
    found = {name: (file, *header) for file in files for name, header in _headers(file).items()}
    unused = {name for name in found if name.endswith(".inv_freq")} | {HEAD} - set(expected)
    names = set(found) - unused
    for fault, faulty in (("missing", set(expected) - names), ("not supported", names - set(expected))):
        if faulty:
            more = f", and {len(faulty) - 1} more" if len(faulty) > 1 else ""
            supported = f"the {len(expected)} tensors that config.json stands for"
            raise ConfigError(f"{folder}: tensor {min(faulty)} is {fault}{more}; supported: {supported}")
    for name, of in expected.items():
        file, got, dtype = found[name]
        if got != of:
            raise ConfigError(f"{file}: the shape of {name} is {got}; supported: {of}, by config.json")
        if dtype not in FLOATS:
            raise ConfigError(f"{file}: {name} is of {dtype}; supported: {', '.join(FLOATS)}")
    return {name: found[name][0] for name in expected}


def _headers(file: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return the shape and the dtype of each tensor of a file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "numpy") as opened:
            slices = {name: opened.get_slice(name) for name in list(opened.keys())}
            return {name: (tuple(of.get_shape()), of.get_dtype()) for name, of in slices.items()}
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error


def _eos_ids(folder: Path, config: Keys, num_ids: int) -> frozenset[int]:
    """Return the end tokens: by generation_config.json, or else by config.json."""
    supported = f"ids from 0 up, below the vocab_size of {num_ids}"
    ids: list[int] = []
    for keys in (config, Keys(folder / "generation_config.json")):
        stated = keys.read("eos_token_id", int | list[int], supported, ids)
        ids = [stated] if isinstance(stated, int) else stated
        if not all(0 <= token_id < num_ids for token_id in ids):
            raise keys.refuse("eos_token_id", supported)
    return frozenset(ids)
