"""APIs of servers, by name. To change what a request asks for, `dataclasses.replace` an entry."""

from __future__ import annotations

from loadgen.endpoints.openai import Chat, Completions

ENDPOINTS: dict[str, Completions | Chat] = {"completions": Completions(), "chat": Chat()}
