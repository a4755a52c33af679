"""The target of a command, opened: a server that runs already, or the reference engine started for it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.cli.options import RunOptions
from loadgen.cli.serve import HOW_TO_ADD_ENGINE, require_engine
from loadgen.errors import UsageError

if TYPE_CHECKING:
    from loadgen.preflight import Preflight
    from loadgen.target import ServerProcess


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedTarget:
    """A target that has answered the preflight.

    load_cpus: the processors that load processes may use; None leaves them where the system puts them.
    """

    url: str
    headers: dict[str, str]
    preflight: Preflight
    server: ServerProcess | None
    load_cpus: tuple[int, ...] | None

    def is_alive(self) -> bool:
        """Say whether the target still runs (a server of ours) or still accepts connections (a URL)."""
        from loadgen.preflight import accepts_connections

        return self.server.is_alive() if self.server else accepts_connections(self.url)

    def facts(self) -> dict[str, Any]:
        """What the manifest says of the target; keys and secrets are not part of it."""
        kind = "reference engine" if self.server else "url"
        engine = {"engine": self.server.facts} if self.server else {}
        return {"kind": kind, "url": self.url, **self.preflight.facts(), **engine}


@contextmanager
def open_target(options: RunOptions, folder: Path, stop: threading.Event) -> Iterator[OpenedTarget]:
    """Yield the target that the flags name, checked; the reference engine is stopped at the end.

    Sets `stop` where a server of ours dies: there is nothing left to send to.
    """
    from loadgen.preflight import base_url, probe
    from workloads.prompts import universal_words

    headers = parse_headers(options.header)
    if key := os.environ.get("BENCH_API_KEY"):
        headers.setdefault("Authorization", f"Bearer {key}")

    def checked(url: str, server: ServerProcess | None, load_cpus: tuple[int, ...] | None) -> OpenedTarget:
        preflight = probe(
            url,
            api=options.api.value,
            model=options.model,
            headers=headers,
            words=universal_words(),
            verify=not options.insecure,
        )
        return OpenedTarget(url=url, headers=headers, preflight=preflight, server=server, load_cpus=load_cpus)

    if options.target is not None:
        yield checked(base_url(options.target), None, None)
        return
    with _reference_engine(options, folder) as (server, load_cpus):
        target = checked(server.url, server, load_cpus)
        watcher = threading.Thread(target=_stop_when_dead, args=(server, stop), daemon=True)
        watcher.start()
        yield target


def _stop_when_dead(server: ServerProcess, stop: threading.Event) -> None:
    while not stop.wait(0.2):
        if not server.is_alive():
            stop.set()


@contextmanager
def _reference_engine(
    options: RunOptions, folder: Path
) -> Iterator[tuple[ServerProcess, tuple[int, ...] | None]]:
    from loadgen.target import ServerProcess

    try:
        require_engine()
    except UsageError as exc:
        raise UsageError(
            f"no --target was given, and the reference engine is not installed: {HOW_TO_ADD_ENGINE}"
        ) from exc
    engine_cpu, load_cpus = _split_cpus() if options.pin else (None, None)
    command = engine_command(options, folder, engine_cpu)
    with ServerProcess(command, log=folder / "engine.log", cpus=load_cpus) as server:
        server.wait_ready()
        yield server, load_cpus


def _split_cpus() -> tuple[int | None, tuple[int, ...] | None]:
    """Give the engine's steps a core of their own; with a single core there is nothing to split."""
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return (cpus[-1], tuple(cpus[:-1])) if len(cpus) > 1 else (None, None)


def engine_command(options: RunOptions, folder: Path, engine_cpu: int | None) -> list[str]:
    """The command that starts the reference engine on a free loopback port, logging into `folder`."""
    command = [sys.executable, "-m", "reference_engine.server", "--host", "127.0.0.1", "--port", "0"]
    command += ["--ready-fd", "{ready_fd}", "--log-dir", str(folder), "--policy", options.policy]
    flags: dict[str, object] = {
        "--model": options.shape,
        "--kv-tokens": options.kv_tokens,
        "--max-batch": options.max_batch,
        "--chunk-tokens": options.chunk_tokens,
        "--pin-engine": engine_cpu,
    }
    return command + [
        part for flag, value in flags.items() if value is not None for part in (flag, str(value))
    ]


def parse_headers(lines: Sequence[str]) -> dict[str, str]:
    """Read `Name: value` lines; UsageError for anything else."""
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip() or any(c in line for c in "\r\n"):
            raise UsageError(f"--header {line!r} is not 'Name: value'")
        headers[name.strip()] = value.strip()
    return headers
