"""The flags, once: every command that measures takes these, under the same names and with the same meaning.

A command receives them as one frozen `RunOptions`; `takes_options` turns its fields into flags. Each flag
can also be set by environment (`BENCH_RATE`) and by `--config bench.toml` (`rate = 20`), in that order
of precedence, and the origin of every value is kept for the manifest.
"""

from __future__ import annotations

import functools
import inspect
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from loadgen.errors import UsageError
from loadgen.units import parse_count, parse_duration, parse_warmup

LOAD, LENGTHS, TARGET, ENGINE, TIMEOUTS, OUTPUT = (
    "Load",
    "Lengths",
    "Target",
    "Reference engine",
    "Timeouts",
    "Output",
)


class Balance(StrEnum):
    """Which of several targets a request goes to."""

    ROUND_ROBIN = "round-robin"
    LEAST_IN_FLIGHT = "least-in-flight"


class TransportName(StrEnum):
    """raw: own HTTP/1.1 client with kernel stamps; httpx: HTTP/2, proxies and environment settings."""

    RAW = "raw"
    HTTPX = "httpx"


def _typed(parse: Callable[[str], Any]) -> Callable[[Any], Any]:
    """Wrap a parser of values with units for typer: text is parsed, a default passes as it is."""

    def convert(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return parse(value)
        except UsageError as exc:
            raise typer.BadParameter(str(exc)) from exc

    return convert


def _window(text: str) -> tuple[float, float | None]:
    """Read `--trace-window` by the rule of the workloads, which are not loaded for `--help`."""
    from workloads import WorkloadError
    from workloads.expression import parse_window

    try:
        return parse_window(text)
    except WorkloadError as exc:
        raise UsageError(str(exc)) from exc


def _workers(text: str) -> int | None:
    """Read `--workers`: a number, or None for `auto`."""
    if text == "auto":
        return None
    if text.isdecimal() and 1 <= int(text) <= 1024:
        return int(text)
    raise UsageError(f"not a number of load processes: {text!r}; write auto, 1, 2, ...")


def _api(text: str) -> str:
    """Read `--api`: auto, the name of a protocol, or the file of a template."""
    from loadgen.endpoints import ENDPOINTS

    if text == "auto" or text in ENDPOINTS or text.endswith(".toml"):
        return text
    raise UsageError(f"unknown protocol {text!r}; known are auto, {', '.join(ENDPOINTS)}, or a FILE.toml")


def _above_zero(text: str) -> float:
    """Read a timeout: 0 would give every request up at once."""
    value = parse_duration(text)
    if value <= 0:
        raise UsageError(f"a timeout must be above 0, not {text}; write a longer one, such as 24h, for never")
    return value


TIME = _typed(parse_duration)
COUNT = _typed(parse_count)


def _flag(text: str, panel: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **more)


def _duration(text: str, panel: str, default: str | bool = True) -> Any:
    return _flag(text, panel, parser=TIME, metavar="TIME", show_default=default)


def _timeout(text: str, default: str) -> Any:
    return _flag(text, TIMEOUTS, parser=_typed(_above_zero), metavar="TIME", show_default=default)


def _read_config(ctx: typer.Context, path: Path | None) -> Path | None:
    """Make the keys of a TOML file the defaults of the flags of the same names."""
    path = path or (Path("bench.toml") if Path("bench.toml").is_file() else None)
    if path is None:
        return None
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise UsageError(f"cannot read {path}: {exc.strerror}") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise UsageError(f"{path} is not TOML: {exc}") from exc
    known = {parameter.name for parameter in ctx.command.params}
    values.pop("check", None)  # the gate's own table
    if tables := sorted(name for name, value in values.items() if isinstance(value, dict)):
        raise UsageError(
            f"{path}: {tables[0]} is a table; keys stand at the top and are written as for flags"
        )
    defaults = {key.replace("-", "_"): value for key, value in values.items()}
    if unknown := sorted(set(defaults) - known):
        raise UsageError(f"{path}: unknown key {unknown[0]!r}; keys are the names of the flags, such as rate")
    lists = {parameter.name for parameter in ctx.command.params if getattr(parameter, "multiple", False)}
    # as text, so that `duration = 30` is refused like `--duration 30` and nothing is read by another rule
    ctx.default_map = {
        key: [str(item) for item in value]
        if isinstance(value, list)
        else value
        if isinstance(value, bool)
        else [str(value)]
        if key in lists
        else str(value)
        for key, value in defaults.items()
    }
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What one measured run is asked to do. Times are seconds once parsed."""

    rate: Annotated[float | None, _flag("Requests per second, sent whatever the server does.", LOAD)] = None
    workload: Annotated[
        str | None, _flag("A workload file, or a preset: chat, code, rag, agent, ...", LOAD, metavar="NAME")
    ] = None
    changes: Annotated[
        list[str],
        _flag("Change one key of the workload; may be repeated.", LOAD, "--set", metavar="KEY=VALUE"),
    ] = ()  # type: ignore[assignment]
    arrival: Annotated[
        str | None,
        _flag(
            "Arrival process: poisson, constant, gamma(cv=2), ...",
            LOAD,
            metavar="PROCESS",
            show_default="poisson",
        ),
    ] = None
    duration: Annotated[
        float | None, _duration("How long requests are sent (30s where nothing else ends the plan).", LOAD)
    ] = None
    requests: Annotated[
        int | None, _flag("Number of requests, in place of a duration.", LOAD, parser=COUNT, metavar="N")
    ] = None
    concurrency: Annotated[
        int | None, _flag("Closed loop: this many requests at a time (no --rate).", LOAD, min=1)
    ] = None
    max_in_flight: Annotated[
        int | None,
        _flag("Cap on requests in flight; named in the summary, for it closes the loop.", LOAD, min=1),
    ] = None
    trace: Annotated[
        Path | None, _flag("Replay recorded arrivals and lengths from this file.", LOAD, metavar="FILE")
    ] = None
    trace_window: Annotated[
        Any, _flag("Part of the recording: START:END.", LOAD, parser=_typed(_window), metavar="WINDOW")
    ] = None
    trace_speed: Annotated[
        float | None, _flag("Play the recording this many times faster.", LOAD, show_default="1")
    ] = None
    trace_columns: Annotated[
        str | None,
        _flag("Columns of a format not known: time=NAME,input=NAME,output=NAME.", LOAD, metavar="COLUMNS"),
    ] = None
    time_unit: Annotated[
        str | None, _flag("Unit of the recording's times: datetime, s, ms, us, ns.", LOAD, metavar="UNIT")
    ] = None
    bad_rows: Annotated[
        str | None, _flag("A bad row: error, drop.", LOAD, metavar="POLICY", show_default="error")
    ] = None
    zero_output: Annotated[
        str | None,
        _flag("A row without output: drop, as-one, error.", LOAD, metavar="POLICY", show_default="drop"),
    ] = None
    dequantize: Annotated[
        bool, _flag("Spread the recording's times over its tick.", LOAD, "--dequantize")
    ] = False
    exact_count: Annotated[bool, _flag("Exactly rate times duration requests.", LOAD, "--exact-count")] = (
        False
    )
    sessions: Annotated[
        str | None, _flag("Multi-turn: closed(turns=4,think=8s), open(turns=4,gap=30s).", LOAD)
    ] = None
    seed: Annotated[int, _flag("Seed of arrivals, lengths and prompts.", LOAD)] = 0
    repeat: Annotated[
        int | None, _flag("Runs, each with a seed of its own; intervals are over runs.", LOAD, min=1)
    ] = None
    warmup: Annotated[
        Any,
        _flag(
            "Left out of the metrics at the start: auto, 10s or 0.",
            LOAD,
            parser=_typed(parse_warmup),
            metavar="TIME",
        ),
    ] = "auto"
    slo: Annotated[
        list[str], _flag("METRIC[.STAT]=VALUE, such as ttft=500ms or itl.p99=50ms; may be repeated.", LOAD)
    ] = ()  # type: ignore[assignment]
    max_send_lag: Annotated[
        float | None,
        _duration("Send lag p99 above which the run is invalid (default: 1ms or 5 % of TTFT).", LOAD),
    ] = None

    dist: Annotated[
        str | None,
        _flag(
            "Family of the token lengths: fixed, uniform, lognormal, ...",
            LENGTHS,
            metavar="NAME",
            show_default="lognormal",
        ),
    ] = None
    input_tokens: Annotated[
        str | None,
        _flag("Prompt length: a mean, or lognormal(median=32,p99=128).", LENGTHS, metavar="LENGTH"),
    ] = None
    output_tokens: Annotated[
        str | None,
        _flag("Answer length: a mean, or lognormal(median=32,p99=128).", LENGTHS, metavar="LENGTH"),
    ] = None
    length_scale: Annotated[
        float | None, _flag("Multiply all lengths by this.", LENGTHS, show_default="1")
    ] = None
    lengths_from: Annotated[
        Path | None, _flag("Draw the lengths from the rows of this recording.", LENGTHS, metavar="FILE")
    ] = None
    prompts: Annotated[
        str | None,
        _flag(
            "What prompts are made of: words, token-ids, or a FILE of texts sent as they are.",
            LENGTHS,
            metavar="KIND",
            show_default="words",
        ),
    ] = None
    tokenizer: Annotated[
        Path | None,
        _flag("Local tokenizer.json that counts prompts where the server does not.", LENGTHS, metavar="FILE"),
    ] = None
    prefixes: Annotated[
        str | None, _flag("Shared prefixes: pool(size=50,tokens=512,zipf=1.1,common=128).", LENGTHS)
    ] = None
    over_context: Annotated[
        str | None,
        _flag(
            "Over context_tokens: error, clip, drop, resample.",
            LENGTHS,
            metavar="POLICY",
            show_default="error",
        ),
    ] = None

    target: Annotated[
        list[str],
        _flag(
            "Measure this server; may be repeated. Without it the reference engine is started.",
            TARGET,
            metavar="URL",
        ),
    ] = ()  # type: ignore[assignment]
    balance: Annotated[Balance, _flag("How several targets share the load.", TARGET)] = Balance.ROUND_ROBIN
    cmd: Annotated[
        str | None,
        _flag("Start this server, measure it, stop it.", TARGET, metavar="COMMAND"),
    ] = None
    ready_url: Annotated[
        str | None, _flag("Answers once the server of --cmd is ready.", TARGET, metavar="URL")
    ] = None
    api: Annotated[
        str,
        _flag(
            "Protocol: auto, completions, chat, sglang, tgi, llamacpp, ollama or FILE.toml.",
            TARGET,
            parser=_typed(_api),
            metavar="NAME",
        ),
    ] = "auto"
    field: Annotated[
        list[str],
        _flag("Further field of each request; may be repeated.", TARGET, metavar="NAME=JSON"),
    ] = ()  # type: ignore[assignment]
    scrape_interval: Annotated[
        float, _duration("How often the target's metrics are read; 0 for never.", TARGET, "1s")
    ] = 1.0
    metrics_url: Annotated[
        str | None, _flag("Where they are (default: /metrics of the target).", TARGET, metavar="URL")
    ] = None
    model: Annotated[str | None, _flag("Model name (default: the first that the server lists).", TARGET)] = (
        None
    )
    transport: Annotated[TransportName, _flag("HTTP client.", TARGET)] = TransportName.RAW
    workers: Annotated[
        Any, _flag("Load processes: auto or a number.", TARGET, parser=_typed(_workers), metavar="N")
    ] = "auto"
    pin: Annotated[
        bool, _flag("Keep load processes and engine on cores of their own.", TARGET, "--pin/--no-pin")
    ] = True
    fresh_connections: Annotated[
        bool, _flag("One connection per request.", TARGET, "--fresh-connections")
    ] = False
    header: Annotated[list[str], _flag("Extra request header 'Name: value'; may be repeated.", TARGET)] = ()  # type: ignore[assignment]
    insecure: Annotated[bool, _flag("Do not verify the TLS certificate.", TARGET, "--insecure")] = False

    policy: Annotated[str, _flag("Scheduler policy.", ENGINE)] = "vllm-v1"
    shape: Annotated[str, _flag("Shape of the random model: nano, tiny, small, ...", ENGINE)] = "tiny"
    kv_tokens: Annotated[int | None, _flag("KV cache, in tokens.", ENGINE, parser=COUNT, metavar="N")] = None
    max_batch: Annotated[int | None, _flag("Most requests in one step.", ENGINE)] = None
    chunk_tokens: Annotated[int | None, _flag("Most tokens in one step.", ENGINE)] = None
    knob: Annotated[
        list[str], _flag("Knob of the policy or of the engine: NAME=VALUE; may be repeated.", ENGINE)
    ] = ()  # type: ignore[assignment]
    simulate: Annotated[
        bool, _flag("Virtual time: a cost model in place of the model.", ENGINE, "--simulate")
    ] = False
    cost: Annotated[
        str,
        _flag(
            "What a simulated step takes: affine(base=8ms,per_seq=0.25ms), roofline(...), a profile.",
            ENGINE,
            metavar="MODEL",
        ),
    ] = "cpu-tiny"

    ready_timeout: Annotated[float, _timeout("For the server of --cmd to become ready.", "600s")] = 600.0
    probe_timeout: Annotated[
        float, _timeout("For each of three tries at a question before the run.", "2s")
    ] = 2.0
    connect_timeout: Annotated[float, _timeout("To connect.", "10s")] = 10.0
    first_token_timeout: Annotated[float, _timeout("From sending to the first token.", "60s")] = 60.0
    stall_timeout: Annotated[float, _timeout("Between two tokens.", "30s")] = 30.0
    timeout: Annotated[float, _timeout("For a whole request.", "600s")] = 600.0
    drain_timeout: Annotated[
        float, _duration("For what is in flight after the last request was sent.", TIMEOUTS, "60s")
    ] = 60.0

    out: Annotated[Path, _flag("Folder under which run folders are made.", OUTPUT, metavar="DIR")] = Path(
        "runs"
    )
    name: Annotated[str, _flag("Name of the run, part of its folder's name.", OUTPUT)] = "run"
    json: Annotated[bool, _flag("Print the summary as one JSON document.", OUTPUT, "--json")] = False
    config: Annotated[
        Path | None,
        _flag(
            "Read flags from this file (default: ./bench.toml where there is one).",
            OUTPUT,
            metavar="FILE",
            callback=_read_config,
            is_eager=True,
        ),
    ] = None
    quiet: Annotated[bool, _flag("No progress.", OUTPUT, "--quiet")] = False
    wide: Annotated[bool, _flag("More columns than fit in 80.", OUTPUT, "--wide")] = False


Options = TypeVar("Options", bound=RunOptions)


def takes_options(command: Callable[[typer.Context, Options], None]) -> Callable[..., None]:
    """Give a typer command the fields of its `options`, a dataclass, as flags."""
    kind: type[Options] = get_type_hints(command)["options"]
    hints = get_type_hints(kind, include_extras=True)
    parameters = [inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)]
    for option in fields(kind):
        default = list(option.default) if option.default == () else option.default
        parameters.append(
            inspect.Parameter(
                option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[option.name]
            )
        )

    @functools.wraps(command)
    def wrapper(ctx: typer.Context, **values: Any) -> None:
        command(ctx, kind(**values))

    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapper


ORIGINS = {"COMMANDLINE": "flag", "ENVIRONMENT": "env", "DEFAULT_MAP": "file"}


def origins(ctx: typer.Context) -> dict[str, str]:
    """Say where each value came from: flag, env, file or default."""
    sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
    return {name: ORIGINS.get(source.name if source else "", "default") for name, source in sources.items()}
