from __future__ import annotations

import importlib.util

import pytest
import torch

from reference_engine import devices
from reference_engine.config import ConfigError, EngineConfig
from reference_engine.devices import choose_device
from reference_engine.executors.torch import load_decoder, tokens_that_fit
from reference_engine.server import main


def set_machine(monkeypatch: pytest.MonkeyPatch, built_for: str | None, *, has_device: bool) -> None:
    monkeypatch.setattr(devices, "_has_driver", lambda: has_device)
    monkeypatch.setattr(torch.version, "cuda", built_for)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_device and built_for is not None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())


@pytest.mark.parametrize(
    ("built_for", "has_device", "chosen"),
    [(None, True, "cpu"), ("13.0", False, "cpu"), ("13.0", True, "cuda")],
)
def test_auto_takes_a_gpu_that_torch_can_use(
    monkeypatch: pytest.MonkeyPatch, built_for: str | None, has_device: bool, chosen: str
) -> None:
    set_machine(monkeypatch, built_for, has_device=has_device)
    assert choose_device("auto") == chosen
    assert choose_device("cpu") == "cpu"


@pytest.mark.parametrize(
    ("built_for", "why"),
    [(None, "is built without CUDA"), ("13.0", "built for CUDA 13.0: what says nvidia-smi")],
)
def test_cuda_that_is_missing_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], built_for: str | None, why: str
) -> None:
    set_machine(monkeypatch, built_for, has_device=False)
    assert main(["--device", "cuda", "--port", "0"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("bench serve: --device cuda: torch sees no CUDA device; ")
    assert said.count("\n") == 1
    assert why in said


def test_cuda_without_triton_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    set_machine(monkeypatch, "13.0", has_device=True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="triton is missing"):
        choose_device("cuda")


def test_what_fits_is_most_of_what_the_weights_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = load_decoder(EngineConfig(model="nano"))
    token_bytes = 2 * 2 * 32 * 4  # two layers, k and v, one head of 32, float32
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1000 * token_bytes, 0))
    assert tokens_that_fit(decoder, 16) == 900 - 16
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (20 * token_bytes, 0))
    with pytest.raises(ConfigError, match="take a smaller model"):
        tokens_that_fit(decoder, 16)


def test_only_a_gpu_may_decide_how_many_tokens_fit() -> None:
    EngineConfig(device="cuda", kv_tokens=0)
    with pytest.raises(ConfigError, match="holds no block"):
        EngineConfig(device="cpu", kv_tokens=0)
