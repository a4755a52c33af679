"""The target of a command, opened: servers that run already, one started for it, or the reference engine."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from loadgen.cli.knobs import parse_knobs, server_flags
from loadgen.cli.options import RunOptions
from loadgen.cli.serve import HOW_TO_ADD_ENGINE, require_device, require_engine
from loadgen.errors import TargetError, UsageError

if TYPE_CHECKING:
    from loadgen.endpoints.base import Endpoint
    from loadgen.preflight import Preflight
    from loadgen.prompt_lengths import PromptLengths
    from loadgen.target import ServerProcess
    from loadgen.telemetry import Telemetry

API_KEY = "BENCH_API_KEY"
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedTarget:
    """A target that has answered the preflight.

    urls: one, or several that share the load. is_gone: asks one by the run's own way.
    load_cpus: the processors that load processes may use; None
    leaves them where the system puts them.
    """

    urls: tuple[str, ...]
    headers: dict[str, str]
    preflight: Preflight
    is_gone: Callable[[str], bool]
    server: ServerProcess | None = None
    load_cpus: tuple[int, ...] | None = None

    @property
    def url(self) -> str:
        return self.urls[0]

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not be written anywhere."""
        from loadgen.redaction import secrets_of

        return secrets_of(self.headers)

    @property
    def is_reference_engine(self) -> bool:
        return self.server is not None and bool(self.server.facts)

    def is_alive(self) -> bool:
        """Say whether the target still runs (a server of ours), or is still there (a URL)."""
        return self.server.is_alive() if self.server else not any(map(self.is_gone, self.urls))

    def facts(self) -> dict[str, Any]:
        """What the manifest says of the target; keys and secrets are not part of it."""
        kind = "reference engine" if self.is_reference_engine else "command" if self.server else "url"
        engine = {"engine": self.server.facts} if self.server and self.server.facts else {}
        more = {"urls": list(self.urls)} if len(self.urls) > 1 else {}
        return {"kind": kind, "url": self.url, **more, **self.preflight.facts(), **engine}

    def telemetry(self, options: RunOptions) -> Telemetry | None:
        """What watches the target while it is measured; None where that is not wanted."""
        from loadgen.telemetry import Telemetry, open_gpus

        if not options.scrape_interval:
            return None
        own = () if self.is_reference_engine else tuple(f"{url}/metrics" for url in self.urls)
        pages = (options.metrics_url,) if options.metrics_url else own
        is_here = urlsplit(self.url).hostname in ("127.0.0.1", "localhost", "::1")
        is_elsewhere = any(
            urlsplit(page).netloc not in {urlsplit(u).netloc for u in self.urls} for page in pages
        )
        return Telemetry(
            pages,
            headers={} if is_elsewhere else self.headers,  # a key goes to nobody but its server
            interval_s=options.scrape_interval,
            pid=self.server.pid if self.server else None,
            gpus=open_gpus() if is_here else None,
            verify=not options.insecure,
        )


@contextmanager
def open_target(options: RunOptions, folder: Path, stop: threading.Event) -> Iterator[OpenedTarget]:
    """Yield the target that the flags name, checked; a server of ours is stopped at the end.

    Sets `stop` where such a server dies: there is nothing left to send to.
    """
    from loadgen.urls import base_url

    check_target_flags(options)
    headers = make_headers(options)
    urls = tuple(map(base_url, options.target))
    if options.cmd is not None:
        with _started(options, folder, stop, headers) as (server, url):
            target = replace(_checked(options, urls or (url,), headers, stop), server=server)
            with _watched(server, stop):
                yield target
    elif urls:
        yield _checked(options, urls, headers, stop)
    else:
        with _reference_engine(options, folder, stop) as (server, load_cpus):
            # It serves one model, under a name of its own.
            target = _checked(replace(options, model=None), (server.url,), headers, stop)
            with _watched(server, stop):
                yield replace(target, server=server, load_cpus=load_cpus)


def check_target_flags(options: RunOptions) -> None:
    """Find what is wrong with the flags of the target before anything is started."""
    from loadgen.probing import is_sendable
    from loadgen.urls import base_url, is_url

    for target in options.target:
        base_url(target)
    if options.model is not None and not is_sendable(options.model):
        raise UsageError(f"--model {options.model!r} is not text in UTF-8")
    parse_headers(options.header)
    parse_fields(options.field)
    if len(options.target) > 1 and options.transport.value == "httpx":
        raise UsageError("--transport httpx takes one --target; several need --transport raw")
    for flag, url in (("--metrics-url", options.metrics_url), ("--ready-url", options.ready_url)):
        if url is not None and not is_url(url):
            raise UsageError(f"{flag} {url!r} is no URL; write http://HOST:PORT/PATH")
    if options.ready_url is not None and options.cmd is None:
        raise UsageError("--ready-url belongs to --cmd: it says when the server that --cmd starts is ready")
    if options.cmd is not None and options.ready_url is None:
        raise UsageError(
            "--cmd needs --ready-url, such as http://127.0.0.1:8000/health, to know when to start"
        )
    if options.cmd is not None and not split_command(options.cmd):
        raise UsageError("--cmd is empty")


def split_command(command: str) -> list[str]:
    """Cut `--cmd` into words as a shell would; no shell runs it."""
    try:
        return shlex.split(command)
    except ValueError as exc:
        raise UsageError(f"--cmd {command!r}: {exc}") from exc


def make_headers(options: RunOptions) -> dict[str, str]:
    """Headers of every request; the key comes from the environment, under the name that the API wants."""
    from loadgen.endpoints.template import Template, load_template

    headers = parse_headers(options.header)
    key = os.environ.get(API_KEY, "").strip()
    check_header(API_KEY, "Authorization", key)
    if options.api.endswith(".toml"):
        template: Template = load_template(Path(options.api), options.model)
        wanted = {name: value for name, value in template.headers.items() if name not in headers}
        if any("${api_key}" in value for value in wanted.values()):
            if not key:
                raise UsageError(f"{options.api} wants a key: set {API_KEY}")
            return headers | {name: value.replace("${api_key}", key) for name, value in wanted.items()}
        headers |= wanted
    if key and not any(name.lower() == "authorization" for name in headers):
        headers["Authorization"] = f"Bearer {key}"
    return headers


def _checked(
    options: RunOptions, urls: tuple[str, ...], headers: dict[str, str], stop: threading.Event
) -> OpenedTarget:
    """Ask every URL; all must speak alike, for one row does not say which of them answered it."""
    from loadgen.preflight import probe
    from loadgen.prompt_lengths import count_by_file
    from loadgen.target import is_gone
    from workloads.prompts import universal_words

    verify, trust_env = not options.insecure, options.transport.value == "httpx"
    gone = partial(is_gone, headers=headers, verify=verify, trust_env=trust_env)
    ask = partial(
        probe,
        headers=headers,
        words=universal_words(),
        extra=parse_fields(options.field),
        count_tokens=None if options.tokenizer is None else count_by_file(options.tokenizer),
        verify=verify,
        trust_env=trust_env,
        timeout_s=options.probe_timeout,
        stop=stop,
    )
    first = ask(urls[0], api=options.api, model=options.model)
    for url in urls[1:]:
        other = ask(url, api=options.api if options.api.endswith(".toml") else first.api, model=first.model)
        if _likeness(other) != _likeness(first):
            raise UsageError(f"{url} is not like {urls[0]}: {_likeness(other)} against {_likeness(first)}")
    return OpenedTarget(urls=urls, headers=headers, preflight=first, is_gone=gone)


def _likeness(preflight: Preflight) -> tuple[str, Endpoint, PromptLengths | None]:
    return preflight.api, preflight.endpoint, preflight.lengths


def show_preflight(target: OpenedTarget) -> None:
    """Print on stderr what was found of a target that is not ours, and what it means for the metrics."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for finding in target.preflight.findings:
        style = "yellow" if finding.meaning else ""
        table.add_row(finding.what, finding.found, finding.meaning, style=style)
    console = Console(stderr=True, highlight=False, markup=False)
    console.print(f"target {', '.join(target.urls)}")
    console.print(table)


@contextmanager
def _watched(server: ServerProcess, stop: threading.Event) -> Iterator[None]:
    """Set `stop` where the server dies."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.2):
            if not server.is_alive():
                stop.set()
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


@contextmanager
def _started(
    options: RunOptions, folder: Path, stop: threading.Event, headers: Mapping[str, str]
) -> Iterator[tuple[ServerProcess, str]]:
    """Start the server of `--cmd` and wait until it answers; its output stays in the folder as server.log."""
    from loadgen.redaction import redact, secrets_of
    from loadgen.target import ServerProcess
    from loadgen.urls import accepts_connections

    assert options.cmd is not None
    assert options.ready_url is not None
    parts = urlsplit(options.ready_url)
    url = urlunsplit((parts.scheme, parts.netloc, "", "", ""))
    if accepts_connections(url):
        raise UsageError(
            f"something already listens at {url}: it would be measured in place of --cmd; stop it"
        )
    log, secrets = folder / "server.log", secrets_of(headers)
    try:
        process = ServerProcess(split_command(options.cmd), log=log)
    except OSError as exc:
        raise UsageError(f"cannot start {options.cmd!r}: {exc.strerror}") from exc
    try:
        with process as server:
            try:
                server.wait_answers(
                    options.ready_url, options.ready_timeout, headers=dict(headers), stop=stop
                )
            except TargetError as exc:  # the run folder goes, for nothing was sent
                log = log.rename(folder.with_name(f"{folder.name}.server.log"))
                raise TargetError(redact(f"{exc}; all of it: {log}", secrets)) from None
            if stop.is_set():
                raise KeyboardInterrupt
            yield server, url
    finally:
        with suppress(OSError):  # the folder is gone, or the disk full: the run says so
            said = log.read_text(encoding="utf-8", errors="surrogateescape")
            log.write_text(redact(said, secrets), encoding="utf-8", errors="surrogateescape")


@contextmanager
def _reference_engine(
    options: RunOptions, folder: Path, stop: threading.Event
) -> Iterator[tuple[ServerProcess, tuple[int, ...] | None]]:
    from loadgen.target import ServerProcess

    try:
        require_engine()
    except UsageError as exc:
        raise UsageError(
            f"no --target was given, and the reference engine is not installed: {HOW_TO_ADD_ENGINE}"
        ) from exc
    require_device(options.device.value)
    engine_cpu, load_cpus = _split_cpus() if options.pin else (None, None)
    command = engine_command(options, folder, engine_cpu)
    with ServerProcess(command, log=folder / "engine.log", cpus=load_cpus) as server:
        server.wait_ready(stop=stop)
        yield server, load_cpus


def _split_cpus() -> tuple[int | None, tuple[int, ...] | None]:
    """Give the engine's steps a core of their own; with a single core there is nothing to split."""
    from loadgen.drive.limits import usable_cpus

    cpus = usable_cpus() if hasattr(os, "sched_setaffinity") else []
    return (cpus[-1], tuple(cpus[:-1])) if len(cpus) > 1 else (None, None)


def engine_command(options: RunOptions, folder: Path, engine_cpu: int | None) -> list[str]:
    """The command that starts the reference engine on a free loopback port, logging into `folder`."""
    command = [sys.executable, "-m", "reference_engine.server", "--host", "127.0.0.1", "--port", "0"]
    command += ["--ready-fd", "{ready_fd}", "--log-dir", str(folder), "--policy", options.policy]
    flags: dict[str, object] = {
        "--model": options.model,
        "--device": options.device.value,
        "--dtype": options.dtype.value,
        "--kv-tokens": options.kv_tokens,
        "--max-batch": options.max_batch,
        "--chunk-tokens": options.chunk_tokens,
        "--pin-engine": engine_cpu,
    }
    command += [part for flag, value in flags.items() if value is not None for part in (flag, str(value))]
    return command + server_flags(parse_knobs(options.knob))


def parse_headers(lines: Sequence[str]) -> dict[str, str]:
    """Read `Name: value` lines; UsageError for anything else."""
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip() or any(c in line for c in "\r\n"):
            raise UsageError(f"--header {line!r} is not 'Name: value'")
        check_header(f"--header {line.partition(':')[0]!r}", name.strip(), value.strip())
        headers[name.strip()] = value.strip()
    return headers


def check_header(where: str, name: str, value: str) -> None:
    """Find what cannot be sent in a header, without quoting a value that may be a key."""
    if not _HEADER_NAME.fullmatch(name):
        raise UsageError(f"{where}: a header's name has letters, digits and dashes, as in X-Tenant")
    if name.lower() in ("content-length", "transfer-encoding"):
        raise UsageError(f"{where}: bench says itself how long a request is; leave this header out")
    if not (value.isascii() and (value.isprintable() or not value)):
        raise UsageError(f"{where}: a header's value is printable ASCII, and this one is not")


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def parse_fields(lines: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Read `NAME=JSON` lines; UsageError for anything else."""
    fields = []
    for line in lines:
        name, equals, value = line.partition("=")
        try:
            json.loads(value, parse_constant=_no_number)
        except (ValueError, RecursionError):
            equals = ""
        if not equals or not name.strip():
            raise UsageError(f"--field {line!r} is not NAME=JSON, such as min_p=0.1 or 'stop=[\"x\"]'")
        fields.append((name.strip(), value))
    return tuple(fields)
