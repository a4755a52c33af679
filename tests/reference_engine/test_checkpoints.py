"""Models of every family against transformers: logits and greedy answers, whatever the chunking."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from reference_engine.attention.paged import PagedAttention
from reference_engine.attention.pages import Pages
from reference_engine.config import ConfigError, Device, EngineConfig
from reference_engine.engine_process import build_engine
from reference_engine.model import Decoder
from reference_engine.model_info import describe_model
from reference_engine.sequence import FinishReason, Sequence
from reference_engine.weights import choose_dtype, load_weights
from tests.reference_engine.checkpoints import FAMILIES, LLAMA3, make_checkpoint
from tests.reference_engine.stub import answer_of, make_sequence, run_to_end

PAGE, NUM_PAGES = 4, 32
NUM_TOKENS = 60
TOKEN_IDS: list[int] = np.random.default_rng(0).integers(2, 300, NUM_TOKENS).tolist()

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def logits_of(
    folder: Path, token_ids: list[int], chunks: list[int], dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Compute the logits after every token, through the paged cache."""
    info = describe_model(str(folder))
    decoder = Decoder(info.shape, load_weights(info, 0, dtype), max_positions=64)
    attention = PagedAttention(info.shape, Pages(info.shape, NUM_PAGES, PAGE, dtype=dtype))
    table = np.random.default_rng(1).permutation(NUM_PAGES)
    got, start = [], 0
    for count in chunks:
        positions = np.arange(start, start + count)
        store_at = table[positions // PAGE] * PAGE + positions % PAGE
        attention.prepare(table[None], np.array([start]), np.array([count]), store_at)
        ids = torch.tensor(token_ids[start : start + count])
        got.append(decoder.forward(ids, torch.from_numpy(positions), torch.arange(count), attention))
        start += count
    return torch.cat(got)


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_logits_are_those_of_transformers(tmp_path: Path, family: str) -> None:
    model = make_checkpoint(tmp_path, family)
    expected = model(torch.tensor([TOKEN_IDS])).logits[0]
    for chunks in ([NUM_TOKENS], [11, 13, 20, *[1] * 16]):
        error = (logits_of(tmp_path, TOKEN_IDS, chunks) - expected).abs().max() / expected.abs().max()
        assert error < 1e-4


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_answers_are_those_of_transformers(tmp_path: Path, family: str, device: Device) -> None:
    model = make_checkpoint(tmp_path, family)
    prompt = torch.tensor([TOKEN_IDS[:40]])
    answer = model.generate(prompt, max_new_tokens=24, do_sample=False, eos_token_id=None)[0, 40:].tolist()
    set_end_tokens(tmp_path, [])
    for chunk_tokens in (128, 7):
        sequence = run(tmp_path, TOKEN_IDS[:40], chunk_tokens=chunk_tokens, device=device)
        assert answer_of(sequence) == answer


def set_end_tokens(folder: Path, ids: list[int]) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))


def run(
    folder: Path, prompt: list[int], *, chunk_tokens: int = 128, device: Device = "cpu", **changes: Any
) -> Sequence:
    """Run one request of 24 tokens that the model may end."""
    config = EngineConfig(
        model=str(folder),
        device=device,
        dtype="float32",
        kv_tokens=1024,
        max_model_len=128,
        chunk_tokens=chunk_tokens,
        is_eos_enabled=True,
    )
    sequence = make_sequence(prompt, 24)
    sequence.ignore_eos = False
    for name, value in changes.items():
        setattr(sequence, name, value)
    run_to_end(build_engine(config), [sequence])
    return sequence


def test_the_end_tokens_of_the_folder_end_an_answer_unless_told_to_be_ignored(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        make_checkpoint(folder, "qwen3")
    set_end_tokens(first, [])
    answer = answer_of(run(first, [5, 6, 7]))
    end = answer[4]
    set_end_tokens(second, [299, end])
    ended = run(second, [5, 6, 7])
    assert answer_of(ended) == answer[: answer.index(end) + 1]
    assert ended.finish_reason is FinishReason.STOP
    for changes in ({"ignore_eos": True}, {"min_tokens": 24}):
        endless = run(second, [5, 6, 7], **changes)
        assert len(answer_of(endless)) == 24
        assert end not in answer_of(endless)
        assert endless.finish_reason is FinishReason.LENGTH


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    file = folder / "config.json"
    config = json.loads(file.read_text())
    change(config)
    file.write_text(json.dumps(config))


def test_older_config_files_and_shards_mean_the_same(tmp_path: Path) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    model = make_checkpoint(new, "llama3-bias")
    model.save_pretrained(old, max_shard_size="40kB")
    assert len(list(old.glob("*.safetensors"))) > 2

    def age(config: dict[str, Any]) -> None:
        scaling = config.pop("rope_parameters")
        config["rope_theta"] = scaling.pop("rope_theta")
        config["rope_scaling"] = {"type": scaling.pop("rope_type"), **scaling}
        config["torch_dtype"] = config.pop("dtype")

    rewrite(old, age)
    ours, theirs = describe_model(str(new)), describe_model(str(old))
    assert (ours.shape, ours.dtype, ours.eos_ids) == (theirs.shape, theirs.dtype, theirs.eos_ids)
    one, other = (load_weights(info, 0, torch.float32) for info in (ours, theirs))
    assert one.num_params == other.num_params == model.num_parameters() - NUM_FOLDED
    assert torch.equal(one.layers[-1].qkv, other.layers[-1].qkv)


NUM_FOLDED = 3 * 2 * 96  # norms that became a part of matrices


CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
GENERATION = "generation_config.json"
LAYER = "model.layers.1."


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    make_checkpoint(folder, "llama")
    return folder


def spoil(folder: Path, file: str, change: dict[str, Any] | str | None) -> None:
    """Change some keys or tensors of a file, or all of its text; None removes it."""
    path = folder / file
    if isinstance(change, dict) and file == WEIGHTS:
        save_file({**load_file(path), **change}, path)
    elif isinstance(change, dict):
        path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **change}))
    elif change is None:
        path.unlink()
    else:
        path.write_text(change)


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        (
            CONFIG,
            {"architectures": ["GPT2LMHeadModel"]},
            'architectures = ["GPT2LMHeadModel"] is not supported',
        ),
        (CONFIG, {"architectures": None}, "architectures = null is not supported"),
        (CONFIG, {"quantization_config": {"bits": 4}}, 'quantization_config = {"bits": 4} is not supported'),
        (CONFIG, {"mlp_bias": True}, "mlp_bias = true is not supported"),
        (CONFIG, {"hidden_act": "gelu"}, 'hidden_act = "gelu" is not supported; supported: silu'),
        (CONFIG, {"num_attention_heads": None}, "num_attention_heads = null is not supported"),
        (
            CONFIG,
            {"hidden_size": True},
            "hidden_size = true is not supported; supported: a whole number above 0",
        ),
        (CONFIG, {"num_key_value_heads": 4}, "a divisor of the 6 attention heads"),
        (CONFIG, {"rms_norm_eps": "x"}, 'rms_norm_eps = "x" is not supported; supported: a number above 0'),
        (CONFIG, {"head_dim": 15}, "head_dim = 15 is not supported; supported: an even number"),
        (
            CONFIG,
            {"tie_word_embeddings": "no"},
            'tie_word_embeddings = "no" is not supported; supported: true',
        ),
        (CONFIG, {"rope_parameters": "x"}, 'rope_parameters = "x" is not supported; supported: an object'),
        (CONFIG, {"rope_parameters": {"rope_type": "dynamic"}}, "default, linear, llama3, yarn"),
        (CONFIG, {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        (CONFIG, {"rope_parameters": {"rope_theta": 0}}, "Expected `float` > 1.0 - at `$.rope_theta`"),
        (CONFIG, {"rope_parameters": {"rope_type": "linear", "factor": -1}}, "> 0.0 - at `$.factor`"),
        (CONFIG, {"rope_parameters": {**LLAMA3, "low_freq_factor": 4}}, "must be below high_freq_factor"),
        (CONFIG, {"eos_token_id": "x"}, 'eos_token_id = "x" is not supported; supported: ids from 0 up'),
        (GENERATION, {"eos_token_id": [1, 300]}, "eos_token_id = [1, 300] is not supported; supported: ids"),
        (
            CONFIG,
            {"num_hidden_layers": 4},
            "tensor model.layers.3.input_layernorm.weight is missing, and 8 more",
        ),
        (CONFIG, {"attention_bias": True}, "tensor model.layers.0.self_attn.k_proj.bias is missing"),
        (CONFIG, {"num_hidden_layers": 2}, "tensor model.layers.2.input_layernorm.weight is not supported"),
        (WEIGHTS, {"extra": torch.ones(1)}, "tensor extra is not supported; supported: the 30 tensors that"),
        (CONFIG, {"vocab_size": 100}, "model.embed_tokens.weight is (300, 96); supported: (100, 96)"),
        (CONFIG, {"hidden_size": 192, "head_dim": 16}, "model.embed_tokens.weight is (300, 96); supported"),
        (CONFIG, {"intermediate_size": 99}, "mlp.gate_proj.weight is (80, 96); supported: (99, 96)"),
        (CONFIG, {"num_key_value_heads": 3}, "self_attn.k_proj.weight is (32, 96); supported: (48, 96)"),
        (CONFIG, {"num_attention_heads": 4}, "self_attn.q_proj.weight is (96, 96)"),
        (CONFIG, {"head_dim": 8}, "self_attn.q_proj.weight is (96, 96); supported: (48, 96)"),
        (
            WEIGHTS,
            {f"{LAYER}mlp.up_proj.weight": torch.ones(80)},
            "up_proj.weight is (80,); supported: (80, 96)",
        ),
        (
            WEIGHTS,
            {f"{LAYER}mlp.up_proj.weight": torch.ones(80, 96, dtype=torch.int8)},
            f"{LAYER}mlp.up_proj.weight is of I8; supported: F32, F16, BF16",
        ),
        (CONFIG, "{", "config.json is not JSON"),
        (WEIGHTS, "version https://git-lfs.github.com/spec/v1", "model.safetensors cannot be read"),
        (WEIGHTS, None, f"has no *.safetensors; supported: one, or several with {INDEX}"),
        (INDEX, {"weight_map": {"a": "a.safetensors"}}, "a.safetensors cannot be read"),
        (INDEX, {"weight_map": 1}, "weight_map = 1 is not supported; supported: the file of each tensor"),
    ],
)
def test_a_folder_that_does_not_fit_is_named_before_the_start(
    whole: Path, tmp_path: Path, file: str, change: dict[str, Any] | str | None, words: str
) -> None:
    folder = shutil.copytree(whole, tmp_path / "broken")
    describe_model(str(whole))
    spoil(folder, file, change)
    with pytest.raises(ConfigError, match=re.escape(words)) as caught:
        describe_model(str(folder))
    message = str(caught.value)
    assert message.startswith(str(folder))
    assert "\n" not in message


def test_a_head_that_is_the_embedding_is_no_copy(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "qwen2-tied")
    weights = load_weights(describe_model(str(tmp_path)), 0, torch.float32)
    assert weights.head.data_ptr() == weights.embedding.data_ptr()


def test_auto_is_float32_unless_model_and_processor_are_bfloat16(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_checkpoint(tmp_path, "llama")
    rewrite(tmp_path, lambda config: config.update(dtype="bfloat16"))
    info = describe_model(str(tmp_path))
    for has_bfloat16, expected in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr("reference_engine.weights._has_bfloat16", lambda has=has_bfloat16: has)
        assert choose_dtype("auto", info, "cpu") is expected
        assert choose_dtype("auto", describe_model("nano"), "cpu") is torch.float32
        assert choose_dtype("bfloat16", describe_model("nano"), "cpu") is torch.bfloat16


@torch.inference_mode()
def test_bfloat16_is_near_float32(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "qwen3")
    token_ids = list(range(2, 40))
    exact = logits_of(tmp_path, token_ids, [38])
    rounded = logits_of(tmp_path, token_ids, [30, *[1] * 8], torch.bfloat16).float()
    assert 1e-4 < (rounded - exact).abs().max() / exact.abs().max() < 0.1
