"""Which device the engine computes on, decided before anything is started.

torch is imported only where there may be a GPU: the HTTP process does without it otherwise.
"""

from __future__ import annotations

import ctypes
import importlib.util

from reference_engine.config import ConfigError, Device

DEFAULT_MODELS: dict[Device, str] = {"cpu": "tiny", "cuda": "1b"}


def choose_device(asked: str) -> Device:
    """Resolve `auto` to a GPU where torch can use one; ConfigError where CUDA is asked for and is missing."""
    if asked == "cpu" or (asked == "auto" and not _has_driver()):
        return "cpu"
    missing = _what_is_missing()
    if missing is None:
        return "cuda"
    if asked == "auto":
        return "cpu"
    raise ConfigError(f"--device cuda: {missing}")


def _has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _what_is_missing() -> str | None:
    import torch

    if torch.version.cuda is None:
        return f"torch sees no CUDA device; this torch ({torch.__version__}) is built without CUDA"
    if not torch.cuda.is_available():
        return f"torch sees no CUDA device; it is built for CUDA {torch.version.cuda}: what says nvidia-smi?"
    if importlib.util.find_spec("triton") is None:
        return "triton is missing; pip install triton, in the version that this torch was built with"
    return None
