"""Writes a plan in the formats that other tools read.

mooncake: JSON lines, times in ms (AIPerf, SGLang, guidellm; in vLLM with the unit set). azure: CSV with
dates. vllm: the custom data set of `vllm bench serve`, prompts with their output lengths and no times.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

from workloads.errors import WorkloadError, unknown_name
from workloads.plan import Plan
from workloads.prompts import PromptMaker
from workloads.texts import plain_text, read_texts

MOONCAKE_BLOCK = 512


def _mooncake(plan: Plan, _: PromptMaker) -> Iterator[str]:
    """Join the plan's blocks to Mooncake's of 512 tokens: an id stands for its block and all before it."""
    if plan.block_tokens and MOONCAKE_BLOCK % plan.block_tokens:
        raise WorkloadError(f"blocks of {plan.block_tokens} tokens do not divide Mooncake's {MOONCAKE_BLOCK}")
    ratio = MOONCAKE_BLOCK // (plan.block_tokens or MOONCAKE_BLOCK)
    ids: dict[object, int] = {}
    for i in range(len(plan)):
        row: dict[str, object] = {
            "timestamp": round(plan.arrival_ns[i] / 1e6, 3),
            "input_length": int(plan.prompt_tokens[i]),
            "output_length": int(plan.output_tokens[i]),
        }
        if plan.block_tokens:
            wide = [ids.setdefault(b, len(ids)) for b in plan.blocks_of(i)[ratio - 1 :: ratio].tolist()]
            own = -(-int(plan.prompt_tokens[i]) // MOONCAKE_BLOCK) - len(wide)
            row["hash_ids"] = wide + [ids.setdefault((i, k), len(ids)) for k in range(own)]
        if plan.session[i] >= 0:
            row["session_id"] = str(plan.session[i])
        if plan.think_ns[i] >= 0:
            del row["timestamp"]
            row["delay"] = round(plan.think_ns[i] / 1e6, 3)
        yield json.dumps(row)


def _azure(plan: Plan, _: PromptMaker) -> Iterator[str]:
    start = datetime(2000, 1, 1)
    yield "TIMESTAMP,ContextTokens,GeneratedTokens"
    for at, prompt, output in zip(plan.arrival_ns, plan.prompt_tokens, plan.output_tokens, strict=True):
        seconds, rest = divmod(int(at), 1_000_000_000)
        stamp = start + timedelta(seconds=seconds)
        yield f"{stamp:%Y-%m-%d %H:%M:%S}.{rest // 100:07d},{prompt},{output}"


def _vllm(plan: Plan, prompts: PromptMaker) -> Iterator[str]:
    has_texts = bool((plan.text_id >= 0).any())
    texts = read_texts(Path(plan.source["workload"]["prompts"])).prompts if has_texts else ()
    for i in range(len(plan)):
        if has_texts:
            text = plain_text(texts[plan.text_id[i]])
        else:
            text = prompts.text(i, int(plan.prompt_tokens[i]), plan.blocks_of(i), plan.block_tokens)
        yield json.dumps({"prompt": text, "output_tokens": int(plan.output_tokens[i])})


EXPORTS: dict[str, Callable[[Plan, PromptMaker], Iterator[str]]] = {
    "mooncake": _mooncake,
    "azure": _azure,
    "vllm": _vllm,
}


def export_lines(plan: Plan, form: str, prompts: PromptMaker) -> Iterator[str]:
    """Give the lines of the export, without line ends."""
    if form not in EXPORTS:
        raise unknown_name("export format", form, EXPORTS)
    return EXPORTS[form](plan, prompts)
