"""What the target says of itself while it is measured, on the run's clock: `/metrics`, its process, its GPU.

One thread of the parent process asks once a second; no load process takes part. Each server's own names are
brought to common ones and stored as (t_ns, name, value) in server.parquet; counters and histograms stay the
ever-growing numbers that they are, so that whoever reads them can tell a restart from a fall. What they mean
beside the client's figures is decided in `loadgen.measure.server`.
"""

from __future__ import annotations

import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from loadgen.clock import now_ns
from loadgen.priority import step_back
from loadgen.store import replacing

SERVER_SCHEMA_VERSION = 1
TIMEOUT_S = 2.0
MAX_PAGE_BYTES = 64 << 20
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")

SERIES: Mapping[str, str] = {  # ours: every server's own names for it
    "running": "engine_requests_running vllm:num_requests_running sglang:num_running_reqs "
    "tgi_batch_current_size llamacpp:requests_processing",
    "waiting": "engine_requests_waiting vllm:num_requests_waiting sglang:num_queue_reqs tgi_queue_size "
    "llamacpp:requests_deferred nv_inference_pending_request_count",
    "kv_usage": "engine_kv_usage_ratio vllm:kv_cache_usage_perc vllm:gpu_cache_usage_perc sglang:token_usage "
    "llamacpp:kv_cache_usage_ratio",
    "preemptions": "engine_preemptions_total vllm:num_preemptions_total",
    "requests": "engine_requests_finished_total vllm:request_success_total sglang:num_requests_total "
    "tgi_request_success nv_inference_request_success",
    # the reference engine: computed ones, also again; llama.cpp: those that no cache held, and the others
    "prompt_tokens": "engine_prompt_tokens_total vllm:prompt_tokens_total sglang:prompt_tokens_total "
    "tgi_request_input_length_sum llamacpp:prompt_tokens_total llamacpp:prompt_tokens_cached_total",
    "output_tokens": "engine_output_tokens_total vllm:generation_tokens_total sglang:generation_tokens_total "
    "tgi_request_generated_tokens_sum llamacpp:tokens_predicted_total",
    "prefix_hit_tokens": "engine_prefix_cached_tokens_total vllm:prefix_cache_hits_total "
    "sglang:cached_tokens_total llamacpp:prompt_tokens_cached_total",
    "prefix_query_tokens": "vllm:prefix_cache_queries_total",
}
HISTOGRAMS: Mapping[str, str] = {  # the first that a server has
    "ttft_s": "engine_time_to_first_token_seconds vllm:time_to_first_token_seconds "
    "sglang:time_to_first_token_seconds",
    "itl_s": "engine_inter_token_latency_seconds vllm:inter_token_latency_seconds "
    "vllm:time_per_output_token_seconds sglang:inter_token_latency_seconds "
    "sglang:time_per_output_token_seconds",
    "e2e_s": "vllm:e2e_request_latency_seconds sglang:e2e_request_latency_seconds tgi_request_duration",
    "queue_s": "engine_queue_time_seconds vllm:request_queue_time_seconds sglang:queue_time_seconds "
    "tgi_request_queue_duration",
    "prefill_s": "vllm:request_prefill_time_seconds",
    "decode_s": "vllm:request_decode_time_seconds",
    "tpot_s": "vllm:request_time_per_output_token_seconds tgi_request_mean_time_per_token_duration",
}
IS_GAUGE = re.compile(r"running|waiting|kv_usage|process_rss_bytes|gpu\d+_(utilization|memory_bytes|power_w)")

_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})? +(\S+)", re.MULTILINE)
_BOUND = re.compile(r'(?:^|,)le="([^"]+)"')

Sample = dict[str, float]


def parse_metrics(text: str) -> Sample:
    """Bring one exposition in Prometheus' text format to common names; unknown series are left out.

    Series that differ in labels only (engines, finish reasons) are added up; of a share, the largest counts.
    """
    series: dict[str, list[tuple[str, float]]] = {}
    for name, labels, number in _LINE.findall(text):
        if (value := _number(number)) is not None:
            series.setdefault(name, []).append((labels, value))
    sample: Sample = {}
    for name, raws in SERIES.items():
        if values := [value for raw in raws.split() for _, value in series.get(raw, ())]:
            sample[name] = max(values) if name == "kv_usage" else sum(values)
    for name, raws in HISTOGRAMS.items():
        for raw in [raw for raw in raws.split() if f"{raw}_count" in series][:1]:
            sample.update(_histogram(name, raw, series))
    return sample


def _number(text: str) -> float | None:
    """A finite number; None for anything else: NaN is how a server says that it does not know."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _histogram(name: str, raw: str, series: Mapping[str, list[tuple[str, float]]]) -> Sample:
    sample = {
        f"{name}.sum": sum(value for _, value in series.get(f"{raw}_sum", ())),
        f"{name}.count": sum(value for _, value in series[f"{raw}_count"]),
    }
    for labels, value in series.get(f"{raw}_bucket", ()):
        bound = _BOUND.search(labels)
        if bound and (limit := _number(bound[1])) is not None:
            key = f"{name}.le={limit:g}"
            sample[key] = sample.get(key, 0.0) + value
    return sample


def _add(sample: Sample, other: Sample) -> None:
    """Add up what several servers say; of a share, the largest counts."""
    for name, value in other.items():
        before = sample.get(name, 0.0)
        sample[name] = max(before, value) if name == "kv_usage" else before + value


def sample_process(pid: int) -> Sample:
    """CPU time and resident memory of a process and its children (Linux); nothing where they are gone."""
    sample: Sample = {}
    for member in _family(pid):
        try:
            stat = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        cpu_s = sum(map(int, stat[11:15])) / TICKS_PER_S  # with children that have ended
        sample["process_cpu_s"] = sample.get("process_cpu_s", 0.0) + cpu_s
        rss_bytes = int(stat[21]) * PAGE_BYTES
        sample["process_rss_bytes"] = sample.get("process_rss_bytes", 0.0) + rss_bytes
    return sample


def _family(pid: int) -> Iterator[int]:
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from _family(int(child))


def _read_page(parts: Iterable[bytes]) -> bytes | None:
    """The whole of a page; None for one that does not end in time, or is none by its size."""
    give_up_s = time.monotonic() + TIMEOUT_S
    page = bytearray()
    for part in parts:
        page += part
        if len(page) > MAX_PAGE_BYTES or time.monotonic() > give_up_s:
            return None
    return bytes(page)


def open_gpus() -> Callable[[], Sample] | None:
    """A reading of this machine's GPUs by NVML (package nvidia-ml-py); None where there are none."""
    try:
        import pynvml

        pynvml.nvmlInit()
        gpus = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    except Exception:  # no package, no driver, no permission: NVML has an error of its own for each
        return None

    def read() -> Sample:
        sample: Sample = {}
        for i, gpu in enumerate(gpus):
            sample[f"gpu{i}_utilization"] = pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100
            sample[f"gpu{i}_memory_bytes"] = float(pynvml.nvmlDeviceGetMemoryInfo(gpu).used)
            sample[f"gpu{i}_power_w"] = pynvml.nvmlDeviceGetPowerUsage(gpu) / 1e3
            sample[f"gpu{i}_energy_j"] = pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3
        return sample

    return read if gpus else None


class Telemetry:
    """A context in which the target is watched: one sample before the load, one after, one each interval."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        headers: Mapping[str, str] | None = None,
        interval_s: float = 1.0,
        pid: int | None = None,
        gpus: Callable[[], Sample] | None = None,
        verify: bool = True,
    ) -> None:
        """urls: metrics pages, added up; one that is not there at first is let go. pid: a server of ours."""
        import httpx  # here, for whoever reads samples needs no client

        self._urls = list(urls)
        self._interval_s = interval_s
        self._pid = pid
        self._gpus = gpus
        self._client = httpx.Client(
            headers=dict(headers or {}), timeout=TIMEOUT_S, verify=verify, trust_env=False
        )
        self._samples: list[tuple[int, Sample]] = []
        self._costs_s: list[float] = []
        self._cpu_s = 0.0
        self._num_failed = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="bench-telemetry", daemon=True)

    def __enter__(self) -> Telemetry:
        self._urls = [url for url in self._urls if self._scrape(url)]
        self._num_failed = 0
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._sample()
        self._client.close()

    @property
    def last(self) -> Sample:
        """The newest sample; empty where there is none."""
        return self._samples[-1][1] if self._samples else {}

    def _watch(self) -> None:
        step_back()
        started_s = time.monotonic()
        for tick in range(1, 1 << 62):
            if self._stop.wait(max(started_s + tick * self._interval_s - time.monotonic(), 0.0)):
                return
            self._sample()

    def _sample(self) -> None:
        cpu_s, begun_ns = time.thread_time(), now_ns()
        sample: Sample = {}
        for url in self._urls:
            _add(sample, self._scrape(url))
        ended_ns = now_ns()
        if self._pid is not None:
            sample |= sample_process(self._pid)
        if self._gpus is not None:
            sample |= self._gpus()
        if sample:
            self._samples.append(((begun_ns + ended_ns) // 2, sample))
        self._costs_s.append((now_ns() - begun_ns) / 1e9)
        self._cpu_s += time.thread_time() - cpu_s

    def _scrape(self, url: str) -> Sample:
        import httpx

        try:
            with self._client.stream("GET", url) as response:
                response.raise_for_status()
                page = _read_page(response.iter_bytes())
        except httpx.HTTPError:
            page = None
        if page is None:
            self._num_failed += 1
            return {}
        return parse_metrics(page.decode("utf-8", "replace"))

    def save(self, path: Path, epoch_ns: int) -> None:
        """Write server.parquet, instants as offsets from the run's start; no file where nothing was said."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows = [
            (at_ns - epoch_ns, name, value)
            for at_ns, sample in self._samples
            for name, value in sample.items()
        ]
        if not rows:
            return
        stamps, names, values = zip(*rows, strict=True)
        table = pa.table(
            {"t_ns": pa.array(stamps, pa.int64()), "name": pa.array(names), "value": pa.array(values)}
        )
        version = {"schema_version": str(SERVER_SCHEMA_VERSION)}
        with replacing(path) as temporary:
            pq.write_table(table.replace_schema_metadata(version), temporary, compression="zstd")

    def facts(self) -> dict[str, Any]:
        """What watching took, for the manifest: the clock for each sample, the processor for all of them."""
        return {
            "urls": self._urls,
            "interval_s": self._interval_s,
            "num_samples": len(self._samples),
            "num_failed": self._num_failed,
            "mean_cost_s": sum(self._costs_s) / len(self._costs_s) if self._costs_s else None,
            "max_cost_s": max(self._costs_s, default=None),
            "cpu_s": self._cpu_s,
        }
