"""Every trace format: the examples of docs/workloads.md and the public ones are read as what they are."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from workloads import Workload, WorkloadError
from workloads.traces import ReadOptions, TraceTable, look, read_trace

DOCS = (Path(__file__).parents[2] / "docs" / "workloads.md").read_text()
Write = Callable[[str], Path]

WEKA = ReadOptions(
    columns="rows=requests,time=t,input=in,output=out,session=id,blocks=hash_ids", block_tokens=64
)
LLMSERVINGSIM = ReadOptions(
    columns="time=arrival_time_ns,input=input_toks,output=output_toks", time_unit="ns"
)
EVALSCOPE = ReadOptions(columns="time=timestamp,input=prompt_tokens,output=completion_tokens")


def example(label: str) -> str:
    """Find the first fenced example after the label in the documentation."""
    found = re.search(re.escape(label) + r".*?```\w+\n(.*?)```", DOCS, re.DOTALL)
    assert found, label
    return found[1]


def seconds(table: TraceTable) -> list[float]:
    return [float(at) for at in table.arrival_ns / 1e9]


@pytest.mark.parametrize(
    ("label", "name", "times", "lengths", "sessions"),
    [
        ("`azure`:", "azure", [0, 4.314579], [(374, 44), (396, 109)], [-1, -1]),
        ("`burstgpt`:", "burstgpt", [0, 40], [(906, 446), (1310, 29)], [0, 0]),
        ("`mooncake`:", "mooncake", [0, 4, 6], [(1100, 52), (300, 40), (450, 20)], [-1, 0, 0]),
        ("`bailian`:", "bailian", [0, 61.114], [(40, 24), (90, 32)], [0, 0]),
        ("`ragpulse`:", "ragpulse", [0], [(3112, 192)], [0]),
        ("`vidur` (", "vidur", [0, 4.314579], [(374, 44), (396, 109)], [-1, -1]),
        ("`sharegpt`:", "sharegpt", [0], [(6, 4)], [0]),
        ("`openai-messages`:", "openai-messages", [0], [(6, 4)], [0]),
    ],
)
def test_the_documented_example_of_each_format(
    write: Write,
    label: str,
    name: str,
    times: list[float],
    lengths: list[tuple[int, int]],
    sessions: list[int],
) -> None:
    table = read_trace(write(example(label)))
    assert table.format.name == name
    assert seconds(table) == pytest.approx(times)
    assert list(zip(table.input_tokens.tolist(), table.output_tokens.tolist(), strict=True)) == lengths
    assert table.session.tolist() == sessions


@pytest.mark.parametrize(
    ("label", "options", "times", "lengths"),
    [
        ("LLMServingSim,", LLMSERVINGSIM, [0], [(374, 44)]),
        ("Weka agent traces,", WEKA, [0, 12.5], [(200, 40), (330, 25)]),
        ("evalscope,", EVALSCOPE, [0, 1.25], [(9, 12), (7, 3)]),
    ],
)
def test_other_formats_are_read_by_named_columns(
    write: Write, label: str, options: ReadOptions, times: list[float], lengths: list[tuple[int, int]]
) -> None:
    path = write(example(label))
    with pytest.raises(WorkloadError, match="no format known here .*--trace-columns"):
        read_trace(path)
    table = read_trace(path, options)
    assert seconds(table) == pytest.approx(times)
    assert list(zip(table.input_tokens.tolist(), table.output_tokens.tolist(), strict=True)) == lengths


def test_parquet_by_named_columns(tmp_path: Path) -> None:
    import pandas as pd

    rows = pd.DataFrame(
        {"at": pd.to_datetime(["2026-01-01T00:00:00.0", "2026-01-01T00:00:03.5"]), "p": [5, 6], "o": [1, 2]}
    )
    rows.to_parquet(tmp_path / "rows")
    table = read_trace(
        tmp_path / "rows", ReadOptions(columns="time=at,input=p,output=o", time_unit="datetime")
    )
    assert seconds(table) == [0, 3.5]
    assert table.input_tokens.tolist() == [5, 6]


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ("time=a,input=b", "lack output"),
        ("when=a,input=b,output=c", "write KEY=NAME; keys: time"),
        ("input,output=c", "write KEY=NAME"),
    ],
)
def test_bad_columns_are_told(columns: str, says: str) -> None:
    with pytest.raises(WorkloadError, match=says):
        Workload(trace=Path("any"), trace_columns=columns).check()


def test_a_column_that_is_not_there_is_told(write: Write) -> None:
    with pytest.raises(WorkloadError, match=r"no column 'z'; its columns: x, y"):
        read_trace(write("x,y\n1,2\n"), ReadOptions(columns="input=x,output=z"))


def test_the_unit_can_be_overridden(write: Write) -> None:
    path = write(
        example("`mooncake`:").splitlines()[0] + '\n{"timestamp": 16, "input_length": 9, "output_length": 9}'
    )
    table = read_trace(path, ReadOptions(time_unit="s", block_tokens=16))
    assert seconds(table) == [0, 16]
    assert table.format.block_tokens == 16
    with pytest.raises(WorkloadError, match="unknown time unit 'min'; known: datetime"):
        Workload(trace=path, time_unit="min").check()


def test_a_rate_that_only_a_wrong_unit_explains_stops(write: Write) -> None:
    rows = [f'{{"timestamp": {i}, "input_length": 9, "output_length": 9}}' for i in range(0, 3000, 10)]
    path = write("\n".join(rows))
    assert Workload(trace=path).plan(0).source["trace"]["rate_per_s"] == pytest.approx(100)
    with pytest.raises(WorkloadError, match=r"1e-05 requests/s; give the right unit with --time-unit"):
        Workload(trace=write("\n".join(row.replace("0,", "00000000,", 1) for row in rows[1:]))).plan(0)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"timestamp": 1, "input_length": 9}', "line 2, column output_length: empty"),
        ('{"timestamp": 1, "input_length": null, "output_length": 1}', "line 2, column input_length: empty"),
        ('{"timestamp": true, "input_length": 9, "output_length": 1}', "line 2, column timestamp: 'True'"),
        ('{"input_length": 9, "output_length": 1}', "line 2, column timestamp: empty"),
        ('{"timestamp": -1, "input_length": 9, "output_length": 1}', "'-1' is negative"),
        ('{"timestamp": 1, "input_length": 9, "output_length": 1, "hash_ids": ["x"]}', "column hash_ids"),
        ('{"timestamp": 1, "input_length": true, "output_length": 1}', "column input_length: 'True'"),
        ('{"timestamp": 1, "inp', "line 2 is not valid JSON"),
        pytest.param('{"a":' * 100_000, "line 2 is not valid JSON", id="deep"),
        ("[1]", "line 2 is not a JSON object"),
        ('{"timestamp": NaN, "input_length": 9, "output_length": 1}', "column timestamp: 'nan' is nan"),
        ('{"timestamp": 1, "input_length": Infinity, "output_length": 1}', "'inf' is not readable"),
    ],
)
def test_bad_json_rows_are_named(write: Write, line: str, says: str) -> None:
    path = write('{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [1]}\n' + line + "\n")
    with pytest.raises(WorkloadError, match=re.escape(says)) as caught:
        read_trace(path)
    assert str(path) in str(caught.value)


def test_broken_json_lines_can_be_dropped_with_a_count(write: Write) -> None:
    good = '{"timestamp": 0, "input_length": 9, "output_length": 1}\n'
    table = read_trace(
        write(good + "[1]\n" + good.replace("9", "NaN") + good + '{"timestamp": 5, "inp'),
        ReadOptions(bad_rows="drop"),
    )
    assert table.num_read == 5
    assert table.line.tolist() == [1, 4]
    assert table.dropped == {"not JSON": 2, "nan input_length": 1}


def test_odd_session_ids_are_names_all_the_same(write: Write) -> None:
    row = '{"timestamp": 0, "input_length": 9, "output_length": 1, "session_id": %s}\n'
    table = read_trace(write("".join(row % name for name in ('["a"]', '"1"', "1", '["a"]'))))
    assert table.session.tolist() == [0, 1, 1, 0]


def test_a_damaged_parquet_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "rows").write_bytes(b"PAR1 and then nothing of use")
    with pytest.raises(WorkloadError, match="damaged Parquet"):
        read_trace(tmp_path / "rows")


def test_a_missing_parent_starts_a_session(traces: Path) -> None:
    table = read_trace(traces / "format_examples" / "bailian_synthetic.jsonl")
    assert table.session.tolist() == [0, 0, 1]


def test_edge_rows_of_burstgpt(traces: Path) -> None:
    plan = Workload(trace=traces / "format_examples" / "burstgpt_v2_synthetic_edge.csv").plan(0)
    assert (plan.arrival_ns / 1e9).tolist() == [0, 3, 33, 93]
    assert plan.session.tolist() == [-1, -1, 0, 0]
    assert plan.turn.tolist() == [-1, -1, 0, 1]
    assert plan.source["trace"]["rows"] == {"read": 5, "kept": 4, "dropped": {"zero_output": 1}}


def test_delays_become_think_times(traces: Path) -> None:
    plan = Workload(trace=traces / "format_examples" / "mooncake_and_aiperf_sessions_synthetic.jsonl").plan(0)
    assert plan.think_ns.tolist() == [-1, -1, -1, 2_000_000_000]
    assert (plan.arrival_ns / 1e9).tolist() == [0, 3, 4, 6]
    assert plan.block_tokens == 512


def test_every_public_example_is_read_or_refused_in_one_line(traces: Path) -> None:
    refused = {
        "azure_bad_rows_synthetic.csv",
        "evalscope_workload_trace_synthetic.jsonl",
        "weka_synthetic.jsonl",
    }
    for path in sorted((traces / "format_examples").iterdir()):
        if path.name in refused:
            with pytest.raises(WorkloadError) as caught:
                read_trace(path)
            assert "\n" not in str(caught.value)
        else:
            table = read_trace(path)
            assert len(table) == table.num_read > 0


def test_golden_figures_of_mooncake(traces: Path) -> None:
    path = traces / "mooncake_fast25_conversation.jsonl.gz"
    facts = Workload(trace=path).plan(0).source["trace"]
    assert facts["rows"]["kept"] == 12_031
    assert facts["rate_per_s"] == pytest.approx(3.40, abs=0.005)
    assert facts["gap_cv"] == pytest.approx(3.03, abs=0.005)
    assert facts["tick_s"] == pytest.approx(3.0, abs=0.003)
    assert tuple(facts["per_minute"].values()) == pytest.approx((3.0, 1.2), rel=0.05)
    assert facts["prefix"] == {"block_tokens": 512, "ideal_hit_rate": pytest.approx(0.374, abs=0.0005)}
    assert tuple(facts["input_tokens"].values()) == pytest.approx(
        (12035, 6909, 27367, 85400, 126195), abs=0.5
    )
    assert tuple(facts["output_tokens"].values()) == pytest.approx((343, 350, 597, 1119, 2000), abs=0.55)
    table = read_trace(path)
    np.testing.assert_array_equal(np.diff(table.block_offsets), -(-table.input_tokens // 512))


def test_golden_figures_of_vidur_lengths(traces: Path) -> None:
    path = traces / "vidur_arxiv_summarization_lengths.csv.gz"
    table = read_trace(path)
    assert len(table) == 28_257
    assert np.percentile(table.input_tokens, (50, 90, 99)) == pytest.approx((2730, 3702, 3933), abs=0.6)
    assert np.percentile(table.output_tokens, (50, 90, 99)) == pytest.approx((167, 372, 3271), abs=0.6)
    with pytest.raises(WorkloadError, match="no times to replay; draw its lengths with --lengths-from"):
        Workload(trace=path).plan(0)


def test_client_models_are_no_requests(traces: Path) -> None:
    with pytest.raises(WorkloadError, match="bench workload fit"):
        read_trace(traces / "servegen_mm-image_clients.csv.gz")
    assert look(traces / "servegen_mm-image_clients.csv.gz").kind == "csv"
