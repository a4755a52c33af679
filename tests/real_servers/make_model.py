"""Make a tiny random Llama that vLLM, transformers and llama.cpp all load: 3 M parameters, no download.

    python make_model.py FOLDER     writes FOLDER/ (config, tokenizer, safetensors) and FOLDER/tiny.gguf

Run with a Python that has torch, transformers and gguf. The tokenizer maps each of the load generator's
one-token words to one token, so that prompt lengths can be checked exactly; output is noise.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HIDDEN, LAYERS, HEADS, KV_HEADS, INTERMEDIATE, CONTEXT = 256, 4, 8, 2, 688, 2048
TEMPLATE = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}<|assistant|>"
SPECIALS = ["<s>", "</s>", "<unk>"]
MERGES = [("Ġ", "t")]  # llama.cpp wants one at least
MERGED = ["".join(pair) for pair in MERGES]


def words() -> list[str]:
    file = Path(__file__).parents[2] / "workloads" / "universal_words_2048.txt"
    return [word for word in file.read_text(encoding="utf-8").split() if word.isascii() and word.isalpha()]


def make_tokenizer(folder: Path) -> dict[str, int]:
    """Bytes, and every word with and without a leading space; a word that is known is taken whole."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    known = [text for word in words() for text in (word, "Ġ" + word)]
    vocab = {token: i for i, token in enumerate(dict.fromkeys([*SPECIALS, *alphabet, *MERGED, *known]))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=MERGES, ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIALS])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="</s>"
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return vocab


def make_model(folder: Path, vocab_size: int) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=CONTEXT,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).to(torch.float32)
    model.save_pretrained(folder)
    return model


def write_gguf(file: Path, model: Any, vocab: dict[str, int]) -> None:
    """The same weights for llama.cpp; query and key rows are reordered to its rotary layout."""
    import gguf

    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(len(vocab))
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")  # the rule that takes a known word whole
    writer.add_token_list(list(vocab))
    kinds = [gguf.TokenType.CONTROL if t in SPECIALS else gguf.TokenType.NORMAL for t in vocab]
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in MERGES])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, LAYERS)
    for name, tensor in model.state_dict().items():
        array = tensor.numpy()
        for part, heads in (("q_proj", HEADS), ("k_proj", KV_HEADS)):
            if part in name:
                rows, columns = array.shape
                array = array.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2)
                array = array.reshape(rows, columns).copy()
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    vocab = make_tokenizer(folder)
    model = make_model(folder, len(vocab))
    write_gguf(folder / "tiny.gguf", model, vocab)
    print(json.dumps({"folder": str(folder), "vocab": len(vocab)}))


if __name__ == "__main__":
    main()
