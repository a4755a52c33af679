"""The tokenizer of a folder: as transformers encodes and renders, and whole characters token by token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, processors

from reference_engine.config import ConfigError
from reference_engine.hf_tokenizer import HfTokenizer
from reference_engine.tokenizer import PromptError
from tests.real_servers.make_model import make_tokenizer
from tests.reference_engine.checkpoints import transformers

TURNS = [("system", "be brief"), ("user", "héllo able\n")]
LOOPING = (
    "{{ bos_token }}{% for m in messages %}\n"
    "  {% if m.role == 'system' %}{% continue %}{% endif %}\n"
    "[{{ m.role | upper }}] {{ m.content | trim | tojson }}{{ eos_token }}\n"
    "{% endfor %}\n"
    "{% if messages | length > 3 %}{{ raise_exception('too many') }}{% endif %}\n"
    "{% if add_generation_prompt %}[ASSISTANT]{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level tokenizer that puts BOS before a prompt."""
    folder = tmp_path_factory.mktemp("tokenizer")
    make_tokenizer(folder)
    file = str(folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(file)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.save(file)
    return folder


def test_a_prompt_is_encoded_as_transformers_does(folder: Path) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = HfTokenizer(folder, is_bos_enabled=True)
    for text in ("able about", "", "héllo 🙂<s>\n\n x"):
        assert ours.encode(text) == [0, *ours.encode(text, is_whole=False)]
        assert ours.encode(text) == theirs.encode(text)
        assert ours.encode(text, is_whole=False) == theirs.encode(text, add_special_tokens=False)
        assert HfTokenizer(folder, is_bos_enabled=False).encode(text) == ours.encode(text, is_whole=False)


@pytest.mark.parametrize("where", ["jinja file", "string", "list"])
def test_chat_templates_are_rendered_as_transformers_does(folder: Path, tmp_path: Path, where: str) -> None:
    for file in folder.glob("token*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    about = json.loads((tmp_path / "tokenizer_config.json").read_text())
    entries = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": LOOPING}]
    if where == "jinja file":
        (tmp_path / "chat_template.jinja").write_text(LOOPING)
    else:
        about["chat_template"] = LOOPING if where == "string" else entries
    about["bos_token"] = {"content": "<s>", "lstrip": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(about))
    ours = HfTokenizer(tmp_path, is_bos_enabled=True)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    theirs.chat_template = LOOPING
    messages = [{"role": role, "content": content} for role, content in TURNS]
    text = theirs.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert '[USER] "héllo able"</s>' in text
    assert ours.encode_chat(TURNS) == theirs.encode(text, add_special_tokens=False)
    with pytest.raises(PromptError, match="refuses these messages: too many"):
        ours.encode_chat(TURNS * 2)


def test_without_a_template_turns_are_plain_lines(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    plain = HfTokenizer(tmp_path, is_bos_enabled=True)
    assert plain.encode_chat(TURNS) == plain.encode("system: be brief\nuser: héllo able\n\nassistant:")


@settings(max_examples=60, deadline=None)
@given(text=st.text(alphabet=st.sampled_from("é🙂a \n"), max_size=12), rest=st.lists(st.integers(0, 300)))
def test_an_answer_comes_in_whole_characters(folder: Path, text: str, rest: list[int]) -> None:
    tokenizer = HfTokenizer(folder, is_bos_enabled=True)
    ids = tokenizer.encode(text, is_whole=False)
    text_of = tokenizer.detokenizer()
    pieces = [text_of(i) for i in ids]
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces)
    noise: Any = "".join(pieces) + "".join(text_of(i) for i in rest)  # what no text encodes to
    whole = Tokenizer.from_file(str(folder / "tokenizer.json")).decode(ids + rest)
    assert whole.startswith(noise)


def test_special_and_unknown_tokens_have_no_text(folder: Path) -> None:
    text_of = HfTokenizer(folder, is_bos_enabled=True).detokenizer()
    assert [text_of(i) for i in (0, 1, 1_000_000)] == ["", "", ""]


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("tokenizer.json", "{", "tokenizer.json cannot be read"),
        ("chat_template.jinja", "{% for %}", "chat template of .* cannot be read"),
        ("tokenizer_config.json", "{", "tokenizer_config.json is not JSON"),
        ("tokenizer_config.json", '{"chat_template": 1}', "chat_template = 1 is not supported"),
    ],
)
def test_broken_files_are_named(folder: Path, tmp_path: Path, file: str, text: str, words: str) -> None:
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    (tmp_path / file).write_text(text)
    with pytest.raises(ConfigError, match=words):
        HfTokenizer(tmp_path, is_bos_enabled=True)
