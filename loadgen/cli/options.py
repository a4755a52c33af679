"""The flags, once: every command that measures takes these, under the same names and with the same meaning.

A command receives them as one frozen `RunOptions`; `takes_options` turns its fields into flags. Each flag
can also be set by environment (`BENCH_RATE`) and by `--config bench.toml` (`rate = 20`), in that order
of precedence, and the origin of every value is kept for the manifest.
"""

# ruff: noqa: RUF009 (`flag` makes a dataclass field)
from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import json
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from loadgen.errors import UsageError
from loadgen.units import parse_count, parse_duration, parse_warmup


class Balance(StrEnum):
    """Which of several targets a request goes to."""

    ROUND_ROBIN = "round-robin"
    LEAST_IN_FLIGHT = "least-in-flight"


class DeviceName(StrEnum):
    """What the reference engine computes on; auto: a GPU that torch can use, or else the CPU."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class DtypeName(StrEnum):
    """What the reference engine computes in; auto: what its model and device are best at."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


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


Texts = list[str]
TIME = _typed(parse_duration)
METAVARS = {
    parse_duration: "TIME",
    _above_zero: "TIME",
    parse_warmup: "TIME",
    parse_count: "N",
    _workers: "N",
}


def flag(panel: str, default: Any, text: str, *names: str, parse: Any = None, **more: Any) -> Any:
    """A field of the options as a flag. parse: reads its text; names: in place of the field's own."""
    if parse is not None:
        more = {"parser": _typed(parse), "metavar": METAVARS.get(parse), **more}
    about = typer.Option(*names, help=text, rich_help_panel=panel, **more)
    return dataclasses.field(default=default, metadata={"flag": about})


_load, _lengths, _target = (partial(flag, panel) for panel in ("Load", "Lengths", "Target"))
_engine, _output = partial(flag, "Reference engine"), partial(flag, "Output")


def _timeout(default_s: float, text: str, parse: Any = _above_zero) -> Any:
    return flag("Timeouts", default_s, text, parse=parse, show_default=f"{default_s:g}s")


def read_toml(path: Path) -> dict[str, Any]:
    """Read a file of settings; UsageError where it cannot be read or is no TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise UsageError(f"cannot read {path}: {exc.strerror}") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise UsageError(f"{path} is not TOML: {exc}") from exc


def _read_config(ctx: typer.Context, path: Path | None) -> Path | None:
    """Make the keys of a TOML file the defaults of the flags of the same names; every value is checked."""
    path = path or (Path("bench.toml") if Path("bench.toml").is_file() else None)
    if path is None:
        return None
    values = read_toml(path)
    values.pop("check", None)  # the gate's own table
    parameters = {parameter.name: parameter for parameter in ctx.command.params}
    ctx.default_map = {}
    for key, value in values.items():
        name = key.replace("-", "_")
        if isinstance(value, dict):
            raise UsageError(f"{path}: {key} is a table; keys stand at the top and are written as for flags")
        if name not in parameters:
            raise UsageError(f"{path}: unknown key {key!r}; keys are the names of the flags, such as rate")
        try:
            ctx.default_map[name] = _checked(ctx, parameters[name], value)
        except (UsageError, typer.BadParameter) as exc:
            raise UsageError(f"{path}: {key} = {json.dumps(value, default=str)}: {exc}") from exc
    return path


def _checked(ctx: typer.Context, parameter: Any, value: Any) -> Any:
    """A value of the file as text, to be read by the rule of its flag: `duration = 30` lacks a unit."""
    if parameter.is_flag != isinstance(value, bool):
        raise UsageError("write true or false" if parameter.is_flag else "this flag takes a value")
    if parameter.is_flag:
        return value
    if isinstance(value, list) and not parameter.multiple:
        raise UsageError("one value is due, not a list")
    text = list(map(str, value if isinstance(value, list) else [value])) if parameter.multiple else str(value)
    parameter.process_value(ctx, text)
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What is sent, and when. Times are seconds once parsed."""

    rate: float | None = _load(None, "Requests per second, sent whatever the server does.")
    workload: str | None = _load(
        None, "A workload file, or a preset: chat, code, rag, agent, ...", metavar="NAME"
    )
    changes: Texts = _load(
        (), "Change one key of the workload; may be repeated.", "--set", metavar="KEY=VALUE"
    )
    arrival: str | None = _load(
        None, "Arrival process: poisson (default), constant, gamma(cv=2), ...", metavar="PROCESS"
    )
    duration: float | None = _load(
        None, "How long requests are sent (30s where nothing else ends the plan).", parse=parse_duration
    )
    requests: int | None = _load(None, "Number of requests, in place of a duration.", parse=parse_count)
    concurrency: int | None = _load(None, "Closed loop: this many requests at a time (no --rate).", min=1)
    trace: Path | None = _load(None, "Replay recorded arrivals and lengths from this file.", metavar="FILE")
    trace_window: Any = _load(None, "Part of the recording: START:END.", parse=_window, metavar="WINDOW")
    trace_speed: float | None = _load(None, "Play the recording this many times faster (default: 1).")
    trace_columns: str | None = _load(
        None, "Columns of a format not known: time=NAME,input=NAME,output=NAME.", metavar="COLUMNS"
    )
    time_unit: str | None = _load(
        None, "Unit of the recording's times: datetime, s, ms, us, ns.", metavar="UNIT"
    )
    bad_rows: str | None = _load(None, "A bad row: error (default), drop.", metavar="POLICY")
    zero_output: str | None = _load(
        None, "A row without output: drop (default), as-one, error.", metavar="POLICY"
    )
    dequantize: bool = _load(False, "Spread the recording's times over its tick.", "--dequantize")
    exact_count: bool = _load(False, "Exactly rate times duration requests.", "--exact-count")
    sessions: str | None = _load(None, "Multi-turn: closed(turns=4,think=8s), open(turns=4,gap=30s).")
    seed: int = _load(0, "Seed of arrivals, lengths and prompts.")

    dist: str | None = _lengths(
        None, "Family of the token lengths: fixed, uniform, lognormal (default), ...", metavar="NAME"
    )
    input_tokens: str | None = _lengths(
        None, "Prompt length: a mean, or lognormal(median=32,p99=128).", metavar="LENGTH"
    )
    output_tokens: str | None = _lengths(
        None, "Answer length: a mean, or lognormal(median=32,p99=128).", metavar="LENGTH"
    )
    length_scale: float | None = _lengths(None, "Multiply all lengths by this (default: 1).")
    lengths_from: Path | None = _lengths(
        None, "Draw the lengths from the rows of this recording.", metavar="FILE"
    )
    prompts: str | None = _lengths(
        None, "Prompts are words (default), token-ids, or a FILE of texts sent as they are.", metavar="KIND"
    )
    prefixes: str | None = _lengths(None, "Shared prefixes: pool(size=50,tokens=512,zipf=1.1,common=128).")
    over_context: str | None = _lengths(
        None, "Over context_tokens: error (default), clip, drop, resample.", metavar="POLICY"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(PlanOptions):
    """What one measured run is asked to do."""

    max_in_flight: int | None = _load(
        None, "Cap on requests in flight; named in the summary, for it closes the loop.", min=1
    )
    repeat: int | None = _load(None, "Runs, each with a seed of its own; intervals are over runs.", min=1)
    warmup: Any = _load("auto", "Left out of the metrics at the start: auto, 10s or 0.", parse=parse_warmup)
    slo: Texts = _load((), "METRIC[.STAT]=VALUE, such as ttft=500ms or itl.p99=50ms; may be repeated.")
    max_send_lag: float | None = _load(
        None,
        "Send lag p99 above which the run is invalid (default: 1ms or 5 % of TTFT).",
        parse=parse_duration,
    )
    tokenizer: Path | None = _lengths(
        None, "Local tokenizer.json that counts prompts where the server does not.", metavar="FILE"
    )

    target: Texts = _target(
        (), "Measure this server; may be repeated. Without it the reference engine is started.", metavar="URL"
    )
    balance: Balance = _target(Balance.ROUND_ROBIN, "How several targets share the load.")
    cmd: str | None = _target(None, "Start this server, measure it, stop it.", metavar="COMMAND")
    ready_url: str | None = _target(None, "Answers once the server of --cmd is ready.", metavar="URL")
    api: str = _target(
        "auto",
        "Protocol: auto, completions, chat, sglang, tgi, llamacpp, ollama or FILE.toml.",
        parse=_api,
        metavar="NAME",
    )
    field: Texts = _target((), "Further field of each request; may be repeated.", metavar="NAME=JSON")
    scrape_interval: float = _target(
        1.0, "How often the target's metrics are read; 0 for never.", parse=parse_duration, show_default="1s"
    )
    metrics_url: str | None = _target(
        None, "Where they are (default: /metrics of the target).", metavar="URL"
    )
    model: str | None = _target(
        None,
        "The target's name for it (default: the first listed). Reference engine: a Hugging Face folder, "
        "or nano, tiny (default), small, base, 1b (default on CUDA), 8b.",
    )
    transport: TransportName = _target(TransportName.RAW, "HTTP client.")
    workers: Any = _target("auto", "Load processes: auto or a number.", parse=_workers)
    pin: bool = _target(True, "Keep load processes and engine on cores of their own.", "--pin/--no-pin")
    realtime: bool = _target(
        True, "Real-time scheduling of load processes, where permitted.", "--realtime/--no-realtime"
    )
    fresh_connections: bool = _target(False, "One connection per request.", "--fresh-connections")
    header: Texts = _target((), "Extra request header 'Name: value'; may be repeated.")
    insecure: bool = _target(False, "Do not verify the TLS certificate.", "--insecure")

    policy: str = _engine("vllm-v1", "Scheduler policy.")
    device: DeviceName = _engine(DeviceName.AUTO, "What it computes on.")
    dtype: DtypeName = _engine(DtypeName.AUTO, "What it computes in.")
    kv_tokens: int | None = _engine(
        None, "KV cache, in tokens (default: 65536; on CUDA what fits).", parse=parse_count
    )
    max_batch: int | None = _engine(None, "Most requests in one step.")
    chunk_tokens: int | None = _engine(None, "Most tokens in one step.")
    knob: Texts = _engine((), "Knob of the policy or of the engine: NAME=VALUE; may be repeated.")
    simulate: bool = _engine(False, "Virtual time: a cost model in place of the model.", "--simulate")
    cost: str = _engine(
        "cpu-tiny",
        "What a simulated step takes: affine(base=8ms,per_seq=0.25ms), roofline(...), a profile.",
        metavar="MODEL",
    )

    ready_timeout: float = _timeout(600.0, "For the server of --cmd to become ready.")
    probe_timeout: float = _timeout(2.0, "For each of three tries at a question before the run.")
    connect_timeout: float = _timeout(10.0, "To connect.")
    first_token_timeout: float = _timeout(60.0, "From sending to the first token.")
    stall_timeout: float = _timeout(30.0, "Between two tokens.")
    timeout: float = _timeout(600.0, "For a whole request.")
    drain_timeout: float = _timeout(
        60.0, "For what is in flight after the last request was sent.", parse_duration
    )

    out: Path = _output(Path("runs"), "Folder under which run folders are made.", metavar="DIR")
    name: str = _output("run", "Name of the run, part of its folder's name.")
    json: bool = _output(False, "Print the summary as one JSON document.", "--json")
    config: Path | None = _output(
        None,
        "Read flags from this file (default: ./bench.toml where there is one).",
        metavar="FILE",
        callback=_read_config,
        is_eager=True,
    )
    quiet: bool = _output(False, "No progress.", "--quiet")
    wide: bool = _output(False, "More columns than fit in 80.", "--wide")


def shared(name: str) -> Any:
    """A field of the same name, default and flag as that of a run."""
    option = RunOptions.__dataclass_fields__[name]
    return dataclasses.field(default=option.default, metadata=option.metadata)


Options = TypeVar("Options")


def takes_options(command: Callable[[typer.Context, Options], None]) -> Callable[..., None]:
    """Give a typer command the fields of its `options`, a dataclass, as flags; those REFUSED are hidden."""
    kind: Any = get_type_hints(command)["options"]
    hints = get_type_hints(kind, include_extras=True)
    parameters = [inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)]
    for option in fields(kind):
        default: Any = list(option.default) if option.default == () else option.default
        if default is dataclasses.MISSING:
            default = inspect.Parameter.empty
        annotation = hints[option.name]
        if "flag" in option.metadata:
            about = copy.copy(option.metadata["flag"])
            about.hidden = option.name in getattr(kind, "REFUSED", ())
            annotation = Annotated[annotation, about]
        parameters.append(
            inspect.Parameter(
                option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
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
