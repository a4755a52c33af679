"""Recorded workloads: every row accounted for, every bad cell named, exact times, golden figures."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workloads import Workload, WorkloadError
from workloads.traces.cells import CellError, parse_instant

EXAMPLE = Path(__file__).parents[2] / "examples" / "trace_synthetic.csv"
Write = Callable[[str], Path]
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
GOOD = "2023-11-16 18:15:46.6805900,374,44\n"


def facts(workload: Workload) -> dict[str, Any]:
    found: dict[str, Any] = workload.plan(0).source["trace"]
    rows = found["rows"]
    assert rows["read"] == rows["kept"] + sum(rows["dropped"].values())
    return found


def test_the_example_is_read_whole() -> None:
    found = facts(Workload(trace=EXAMPLE))
    assert found["format"] == "azure"
    assert found["rows"] == {"read": 321, "kept": 321, "dropped": {}}
    assert 60 < found["span_s"] < 120


@pytest.mark.parametrize(
    ("name", "rows", "rate", "cv", "minutes", "inputs", "outputs"),
    [
        ("conv", 19_366, 5.53, 1.09, (16, 1.5), (1155, 1020, 2735, 4142, 14050), (211, 129, 424, 601, 1000)),
        ("code", 8_819, 2.57, 13.2, (164, 4.2), (2048, 1469, 5188, 7436, 7437), (27.9, 13, 55, 251, 1899)),
    ],
)
def test_golden_figures_of_the_azure_traces(
    traces: Path,
    name: str,
    rows: int,
    rate: float,
    cv: float,
    minutes: tuple[float, float],
    inputs: tuple[float, ...],
    outputs: tuple[float, ...],
) -> None:
    found = facts(Workload(trace=traces / f"azure_llm_2023_{name}.csv.gz"))
    assert found["rows"] == {"read": rows, "kept": rows, "dropped": {}}
    assert round(found["rate_per_s"], 2) == rate
    assert found["gap_cv"] == pytest.approx(cv, abs=0.05 if cv > 2 else 0.005)
    assert tuple(found["per_minute"].values()) == pytest.approx(minutes, rel=0.05)
    for column, golden in (("input_tokens", inputs), ("output_tokens", outputs)):
        assert tuple(found[column].values()) == pytest.approx(golden, abs=0.51)


def test_a_recorded_minute_accounts_for_every_row(traces: Path) -> None:
    workload = Workload(trace=traces / "azure_llm_2023_conv.csv.gz", trace_window=(0, 60), length_scale=0.1)
    found = facts(workload)
    assert found["rows"]["dropped"] == {"outside_window": 19_175}
    plan = workload.plan(0)
    assert len(plan) == 191
    assert plan.span_s < 60
    assert plan.prompt_tokens[0] == 37
    assert plan.output_tokens[0] == 4
    # The recorded lengths stand in the facts, the replayed ones beside them.
    assert found["input_tokens"]["p50"] == pytest.approx(
        10 * plan.source["realised"]["input_tokens"]["p50"], rel=0.02
    )


def test_times_are_kept_to_100_ns(traces: Path) -> None:
    plan = Workload(trace=traces / "azure_llm_2023_conv.csv.gz", trace_window=(0, 5)).plan(0)
    assert plan.arrival_ns[:3].tolist() == [0, 4_314_579_000, 4_541_877_000]


@pytest.mark.parametrize(
    ("name", "rows", "span_s"),
    [
        ("azure_2024_style_synthetic.csv", 3, 0.998837),
        ("azure_bom_crlf_nofinalnewline_synthetic.csv", 3, 4.31941),
        ("azure_mm_2025_style_synthetic.csv", 2, 0.5),
    ],
)
def test_every_azure_layout(traces: Path, name: str, rows: int, span_s: float) -> None:
    found = facts(Workload(trace=traces / "format_examples" / name))
    assert (found["format"], found["rows"]["kept"], found["span_s"]) == ("azure", rows, span_s)


def test_bad_rows_are_dropped_with_their_reasons(traces: Path) -> None:
    path = traces / "format_examples" / "azure_bad_rows_synthetic.csv"
    with pytest.raises(WorkloadError, match="line 3, column ContextTokens: empty"):
        Workload(trace=path).plan(0)
    found = facts(Workload(trace=path, bad_rows="drop", context_tokens=100_000, over_context="drop"))
    assert found["rows"] == {
        "read": 7,
        "kept": 1,
        "dropped": {
            "empty ContextTokens": 1,
            "negative ContextTokens": 1,
            "nan ContextTokens": 1,
            "unparsable TIMESTAMP": 1,
            "zero_output": 1,
            "over_context": 1,
        },
    }
    assert found["notes"] == ["1 rows came before the row above them; sorted by time"]


@pytest.mark.parametrize(
    ("row", "column", "says"),
    [
        ("2023-11-16 18:15:47,,12", "ContextTokens", "empty"),
        ("2023-11-16 18:15:47,5", "GeneratedTokens", "empty"),
        ("2023-11-16 18:15:47,-5,12", "ContextTokens", "'-5' is negative"),
        ("2023-11-16 18:15:47,5,nan", "GeneratedTokens", "'nan' is nan"),
        ("2023-11-16 18:15:47,5,inf", "GeneratedTokens", "not readable"),
        ("2023-11-16 18:15:47,5.5,3", "ContextTokens", "'5.5' is not readable"),
        ("2023-11-16 18:15:47,9999999999999999999999,3", "ContextTokens", "not readable"),
        ("2023-11-16 18:15:47,many,3", "ContextTokens", "'many' is not readable"),
        ("yesterday,5,3", "TIMESTAMP", "'yesterday' is not readable"),
        ("2023-13-16 18:15:47,5,3", "TIMESTAMP", "not readable"),
        (",5,3", "TIMESTAMP", "empty"),
    ],
)
def test_a_bad_cell_is_named_by_file_line_and_column(write: Write, row: str, column: str, says: str) -> None:
    path = write(HEADER + GOOD + "\n" + row + "\n")
    with pytest.raises(WorkloadError) as caught:
        Workload(trace=path).plan(0)
    message = str(caught.value)
    assert f"{path}, line 4, column {column}: " in message
    assert says in message
    assert "--bad-rows drop" in message
    assert facts(Workload(trace=path, bad_rows="drop"))["rows"]["kept"] == 1


def test_zero_output_has_a_policy(write: Write) -> None:
    path = write(HEADER + GOOD + "2023-11-16 18:15:47,5,0\n")
    assert facts(Workload(trace=path))["rows"]["dropped"] == {"zero_output": 1}
    assert Workload(trace=path, zero_output="as-one").plan(0).output_tokens.tolist() == [44, 1]
    with pytest.raises(WorkloadError, match="line 3, column GeneratedTokens: 0 output"):
        Workload(trace=path, zero_output="error").plan(0)


def test_a_prompt_over_the_context_is_named_by_its_line(write: Write) -> None:
    path = write(HEADER + GOOD + "2023-11-16 18:15:47,5000,10\n")
    with pytest.raises(WorkloadError, match=r"line 3: asks for 5000 prompt \+ 10 output"):
        Workload(trace=path, context_tokens=4096).plan(0)


def test_speed_and_number_of_requests() -> None:
    plain = Workload(trace=EXAMPLE).plan(0)
    fast = Workload(trace=EXAMPLE, trace_speed=2, num_requests=100).plan(0)
    np.testing.assert_allclose(fast.arrival_ns, plain.arrival_ns[:100] / 2, atol=1)
    assert fast.source["trace"]["rows"]["dropped"] == {"beyond_num_requests": 221}


def test_time_zero_is_the_first_row_of_the_window() -> None:
    plan = Workload(trace=EXAMPLE, trace_window=(30, None)).plan(0)
    assert plan.arrival_ns[0] == 0
    assert 55 < plan.span_s < 60


def test_the_bytes_of_the_file_do_not_matter(tmp_path: Path) -> None:
    text = EXAMPLE.read_text()
    plain = Workload(trace=EXAMPLE).plan(0).digest()
    crlf, zipped = tmp_path / "crlf", tmp_path / "zipped"
    crlf.write_bytes(b"\xef\xbb\xbf" + text.strip().replace("\n", "\r\n").encode())
    zipped.write_bytes(gzip.compress(text.encode()))
    assert Workload(trace=crlf).plan(0).digest() == plain == Workload(trace=zipped).plan(0).digest()


def test_damaged_files_are_told_in_one_line(tmp_path: Path) -> None:
    cases = {
        "empty": b"",
        "header": HEADER.encode(),
        "cut.gz": gzip.compress(EXAMPLE.read_bytes())[:-200],
        "latin": b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:47,\xe9,1\n",
        "json": b'{"timestamp": 0\n',
        "deep": b'{"a":' * 100_000,
        "other": b"when,prompt\n1,2\n",
    }
    says = [
        "is empty",
        "no row is left",
        "damaged gzip",
        "not UTF-8",
        "not valid JSON",
        "not valid JSON",
        "--trace-columns",
    ]
    for (name, content), text in zip(cases.items(), says, strict=True):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(WorkloadError, match=text) as caught:
            Workload(trace=tmp_path / name).plan(0)
        assert name in str(caught.value)
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(WorkloadError, match="does not exist|cannot be read"):
            Workload(trace=path).plan(0)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rate_per_s": 5.0}, "has its own rate"),
        ({"trace_window": (500.0, None)}, "no row lies in the window"),
        ({"trace_window": (9.0, 9.0)}, "is empty"),
        ({"trace_window": (-1.0, 9.0)}, "starts before 0"),
        ({"trace_speed": 0.0}, "trace speed must be above 0"),
        ({"length_scale": -1.0}, "length scale must be above 0"),
        ({"trace_speed": 1.0, "context_tokens": 2, "over_context": "drop"}, "no row is left .*over_context"),
    ],
)
def test_bad_replays_are_told(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(WorkloadError, match=says):
        Workload(trace=EXAMPLE, **changes).plan(0)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1970-01-01 00:00:01", 1_000_000_000),
        ("1970-01-01T00:00:01Z", 1_000_000_000),
        ("1970-01-01 00:00:01.5+00:00", 1_500_000_000),
        ("1970-01-01 02:00:01.1234567+02:00", 1_123_456_700),
        ("1970-01-01 00:00:00.123456789123-01:00", 3600_123_456_789),
    ],
)
def test_dates_of_every_kind(text: str, ns: int) -> None:
    assert parse_instant(text, "datetime") == ns


def test_numbers_are_exact_in_their_unit() -> None:
    assert parse_instant("19440110.0", "s") == 19_440_110_000_000_000
    assert parse_instant(2997, "ms") == 2_997_000_000
    assert parse_instant(1_700_000_000_123_456_789, "ns") == 1_700_000_000_123_456_789
    with pytest.raises(CellError, match="unparsable"):
        parse_instant("12", "datetime")
