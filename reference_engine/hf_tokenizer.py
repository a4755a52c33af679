"""The tokenizer of a Hugging Face folder: tokenizer.json, and the chat template as jinja2 renders it there.

An answer's text comes out token by token; what is not yet a whole character is held back until it is one, and
a token whose text is held back, or that is special, adds none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from reference_engine.config import ConfigError
from reference_engine.model_info import Keys
from reference_engine.tokenizer import PromptError

PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
)


class HfTokenizer:
    """`is_bos_enabled`: put around a prompt what the tokenizer.json says, such as BOS."""

    def __init__(self, folder: Path, *, is_bos_enabled: bool) -> None:
        try:
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # the package raises nothing narrower
            raise ConfigError(f"{folder / 'tokenizer.json'} cannot be read: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._has_specials = is_bos_enabled
        about = Keys(folder / "tokenizer_config.json")
        self._names = {name: _text(about.get(name)) for name in ("bos_token", "eos_token")}
        template = _chat_template(folder, about)
        self._is_plain = template is None
        try:
            self._template = _environment().from_string(template or PLAIN_TEMPLATE)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(f"the chat template of {folder} cannot be read: {error}") from error

    def encode(self, text: str, *, is_whole: bool = True) -> list[int]:
        has_specials = is_whole and self._has_specials
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=has_specials).ids
        return ids

    def encode_chat(self, turns: Iterable[tuple[str, str]]) -> list[int]:
        """Render the template, which writes BOS itself where the model wants it, and encode the result."""
        messages = [{"role": role, "content": content} for role, content in turns]
        try:
            text = self._template.render(messages=messages, add_generation_prompt=True, **self._names)
        except jinja2.TemplateError as error:
            raise PromptError(f"the chat template refuses these messages: {error}") from error
        return self.encode(text, is_whole=self._is_plain)

    def detokenizer(self) -> Callable[[int], str]:
        stream = DecodeStream(skip_special_tokens=True)
        return lambda token_id: stream.step(self._tokenizer, token_id) or ""


def _environment() -> jinja2.Environment:
    """Return what templates were written for: transformers' own settings and functions."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(
        value, ensure_ascii=False, indent=indent
    )
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _chat_template(folder: Path, about: Keys) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    kind = str | list[dict[str, str]] | None
    stated: Any = about.read("chat_template", kind, "a template, or a list of them, each with its name")
    by_name = stated if isinstance(stated, list) else [{"name": "default", "template": stated}]
    return {entry.get("name"): entry.get("template") for entry in by_name}.get("default")


def _text(token: Any) -> str:
    """Return a special token's text, which older files write as an object."""
    return token.get("content", "") if isinstance(token, dict) else token or ""
