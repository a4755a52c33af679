"""What servers say of themselves: their own names brought to ours, on the run's clock, through restarts."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from loadgen.clock import now_ns
from loadgen.telemetry import Sample, Telemetry, _read_page, open_gpus, parse_metrics, sample_process
from tests.loadgen.answering import Answer, server

PAGES = Path(__file__).parent / "metrics"


def test_vllm_s_page() -> None:
    sample = parse_metrics((PAGES / "vllm.txt").read_text())
    assert (sample["running"], sample["waiting"], sample["kv_usage"]) == (0.0, 0.0, 0.0)
    assert (sample["preemptions"], sample["requests"]) == (87.0, 226.0)
    assert (sample["prompt_tokens"], sample["output_tokens"]) == (14464.0, 14464.0)
    assert (sample["prefix_hit_tokens"], sample["prefix_query_tokens"]) == (832.0, 14464.0)
    assert sample["ttft_s.count"] == sample["e2e_s.count"] == sample["queue_s.count"] == 226.0
    assert sample["itl_s.count"] == 14464.0 - 226.0
    assert sample["ttft_s.le=0.1"] <= sample["ttft_s.le=1"] <= sample["ttft_s.count"]


def test_llamacpp_s_page() -> None:
    sample = parse_metrics((PAGES / "llamacpp.txt").read_text())
    assert sample == {
        "running": 0.0,
        "waiting": 0.0,
        "prompt_tokens": 17065.0 + 8286.0,
        "prefix_hit_tokens": 8286.0,
        "output_tokens": 26731.0,
    }


@pytest.mark.parametrize(
    ("page", "sample"),
    [
        ("", {}),
        ("<html>hello</html>", {}),
        ("vllm:num_requests_running nonsense\n", {}),
        (
            'vllm:num_requests_running{engine="0"} 2\nvllm:num_requests_running{engine="1"} 3\n',
            {"running": 5},
        ),
        (
            'vllm:kv_cache_usage_perc{engine="0"} 0.2\nvllm:kv_cache_usage_perc{engine="1"} 0.9\n',
            {"kv_usage": 0.9},
        ),
        ('sglang:num_queue_reqs{model_name="a b"} 4.0 1700000000\n', {"waiting": 4}),
        (
            'tgi_request_queue_duration_bucket{le="0.5"} 1\ntgi_request_queue_duration_bucket{le="+Inf"} 2\n'
            "tgi_request_queue_duration_sum 0.75\ntgi_request_queue_duration_count 2\n",
            {"queue_s.le=0.5": 1, "queue_s.sum": 0.75, "queue_s.count": 2},
        ),
        (
            "vllm:time_per_output_token_seconds_count 9\nvllm:time_per_output_token_seconds_sum 9\n"
            "vllm:inter_token_latency_seconds_count 8\nvllm:inter_token_latency_seconds_sum 4\n",
            {"itl_s.count": 8, "itl_s.sum": 4},
        ),
        (
            "vllm:num_requests_running NaN\nvllm:num_requests_waiting +Inf\nvllm:kv_cache_usage_perc 0.5\n"
            'tgi_request_queue_duration_bucket{le="abc"} 1\ntgi_request_queue_duration_count 2\n',
            {"kv_usage": 0.5, "queue_s.sum": 0, "queue_s.count": 2},
        ),
    ],
)
def test_pages(page: str, sample: Sample) -> None:
    assert parse_metrics(page) == sample


def test_samples_before_during_and_after_on_the_run_s_clock(tmp_path: Path) -> None:
    count, asked_often = iter(range(1000)), threading.Event()

    def page(_: object) -> Answer:
        number = next(count)
        if number == 3:
            asked_often.set()
        return 200, "text/plain", b"llamacpp:tokens_predicted_total %d\n" % (10 * number)

    with server({"/metrics": page}) as url:
        began_ns = now_ns()
        with Telemetry([f"{url}/metrics"], interval_s=0.02, pid=os.getpid()) as telemetry:
            assert asked_often.wait(30)
    telemetry.save(tmp_path / "server.parquet", began_ns)

    import pyarrow.parquet as pq

    rows = pq.read_table(tmp_path / "server.parquet").to_pylist()
    tokens = [(row["t_ns"], row["value"]) for row in rows if row["name"] == "output_tokens"]
    assert tokens[0][1] == 10.0  # the page at 0 was only to see whether it is there
    assert 0 < tokens[0][0] < tokens[-1][0] < now_ns() - began_ns
    assert [value for _, value in tokens] == sorted(value for _, value in tokens)
    assert {row["name"] for row in rows} == {"output_tokens", "process_cpu_s", "process_rss_bytes"}
    facts = telemetry.facts()
    assert facts["num_samples"] == len(tokens) >= 3
    assert (facts["num_failed"], facts["interval_s"]) == (0, 0.02)
    assert 0 < facts["mean_cost_s"] <= facts["max_cost_s"]
    assert facts["cpu_s"] > 0


def test_a_page_that_is_not_there_is_asked_for_once(tmp_path: Path) -> None:
    asked: list[int] = []

    def page(_: object) -> Answer:
        asked.append(1)
        return 404, "text/html", b"<h1>no</h1>"

    with server({"/metrics": page}) as url, Telemetry([f"{url}/metrics"], interval_s=0.01) as telemetry:
        time.sleep(0.05)
    telemetry.save(tmp_path / "server.parquet", 0)
    assert len(asked) == 1
    assert not (tmp_path / "server.parquet").exists()


def test_a_page_that_does_not_end_is_given_up() -> None:
    assert _read_page([b"a", b"b"]) == b"ab"
    assert _read_page(itertools.repeat(b"x" * (1 << 20))) is None


def test_a_page_that_drips_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.telemetry.TIMEOUT_S", 0.01)

    def drops() -> Iterator[bytes]:
        for _ in range(1000):
            time.sleep(0.002)
            yield b"x"
        raise AssertionError("read to the end")

    assert _read_page(drops()) is None


def test_a_page_that_fails_for_a_while_leaves_a_hole() -> None:
    answers = iter([(200, 1), (200, 2), (500, 0), *[(200, 3)] * 1000])

    def page(_: object) -> Answer:
        status, value = next(answers)
        return status, "text/plain", b"llamacpp:tokens_predicted_total %d\n" % value

    with server({"/metrics": page}) as url, Telemetry([f"{url}/metrics"], interval_s=0.01) as telemetry:
        time.sleep(0.08)
    assert telemetry.facts()["num_failed"] == 1


def test_pages_of_several_servers_are_added_up() -> None:
    page = b"vllm:num_requests_running 2\nvllm:kv_cache_usage_perc 0.5\n"
    with server({"/metrics": (200, "text/plain", page)}) as url:
        pages = [f"{url}/metrics", f"{url}/metrics"]
        with Telemetry(pages, interval_s=60) as telemetry:
            pass
    assert telemetry.last == {"running": 4.0, "kv_usage": 0.5}


def test_the_key_is_sent_to_the_metrics_page() -> None:
    with Telemetry([], headers={"Authorization": "Bearer k"}, interval_s=60) as telemetry:
        assert telemetry._client.headers["authorization"] == "Bearer k"


def test_cpu_and_memory_of_a_process_and_its_children() -> None:
    burn = "import time\nwhile time.process_time() < 0.2:\n    pass\nprint(flush=True)\ninput()"
    parent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r}])"
    child = subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        sample = sample_process(child.pid)
        child.communicate("\n")
    assert sample["process_cpu_s"] >= 0.15  # the kernel counts in ticks of 10 ms
    assert sample["process_rss_bytes"] > 1e6
    assert sample_process(child.pid) == {}


def fake_nvml(num_gpus: int) -> ModuleType:
    module = ModuleType("pynvml")
    values = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: num_gpus,
        "nvmlDeviceGetHandleByIndex": lambda i: i,
        "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=50),
        "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(used=1 << 30),
        "nvmlDeviceGetPowerUsage": lambda _: 250_000,
        "nvmlDeviceGetTotalEnergyConsumption": lambda _: 9_000,
    }
    for name, value in values.items():
        setattr(module, name, value)
    return module


def test_gpus_by_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(1))
    read = open_gpus()
    assert read is not None
    assert read() == {
        "gpu0_utilization": 0.5,
        "gpu0_memory_bytes": float(1 << 30),
        "gpu0_power_w": 250.0,
        "gpu0_energy_j": 9.0,
    }


def test_no_gpu_and_no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(0))
    assert open_gpus() is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert open_gpus() is None
