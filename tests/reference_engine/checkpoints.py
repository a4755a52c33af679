"""Small random Hugging Face models on disk, of every family that the engine knows."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch

from tests.real_servers.make_model import make_tokenizer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers as transformers

SMALL: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 96,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 8.0, "original_max_position_embeddings": 32}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama3-bias": ("Llama", {"rope_parameters": LLAMA3, "attention_bias": True}),
    "llama-linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 5e3, "factor": 4.0}}),
    "llama-yarn": ("Llama", {"rope_parameters": YARN, "num_key_value_heads": 6}),
    "qwen2-tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2-window": ("Qwen2", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "mistral-window": ("Mistral", {"sliding_window": 9}),
}


def make_checkpoint(folder: Path, family: str, **changes: Any) -> Any:
    """Write a random model of a family and return transformers' own; every kind of weight matters in it."""
    name, settings = FAMILIES[family]
    config = getattr(transformers, f"{name}Config")(**{**SMALL, **settings, **changes})
    torch.manual_seed(len(family))
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(std=parameter.shape[1] ** -0.5)
            else:
                parameter.uniform_(0.3, 1.7)
    model.save_pretrained(folder)
    return model


def make_served_model(folder: Path) -> Any:
    """Write a model with a tokenizer that has one token for each word of the load generator."""
    vocabulary = make_tokenizer(folder)
    return make_checkpoint(folder, "llama", vocab_size=len(vocabulary), max_position_embeddings=512)
