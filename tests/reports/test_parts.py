from __future__ import annotations

from typing import Any

from reports.parts import part_tables


def part(key: Any, n: int, attained: float | None = None) -> dict[str, Any]:
    metric = {"n": n, "p50": 0.05, "p99": 0.2}
    return {
        "key": key,
        "scheduled": n,
        "ok": n,
        "attained_fraction": attained,
        "ttft_s": metric,
        "e2e_s": metric,
    }


def test_a_parting_is_a_table_and_few_values_have_no_p99() -> None:
    (table,) = part_tables({"prompt_tokens_up_to": [part(32, 3), part(64, 300)]})
    assert table.heading == "By prompt length"
    assert table.columns[:5] == ["tokens, up to", "scheduled", "ok", "TTFT p50", "TTFT p99"]
    assert table.rows[0][:5] == ["32", "3", "3", "50.0 ms", "–"]
    assert table.rows[1][:5] == ["64", "300", "300", "50.0 ms", "200 ms"]
    assert all(len(row) == len(table.columns) for row in table.rows)


def test_objectives_add_a_column_and_keys_are_written_plainly() -> None:
    table, other = part_tables({"class": [part("chat\x1b", 1, 0.5)], "from_s": [part(3.0, 1)]})
    assert table.columns[3] == "attained"
    assert table.rows[0][:4] == ["chat\ufffd", "1", "1", "50 %"]
    assert (other.heading, other.rows[0][0]) == ("By time", "3")


def test_nothing_parted_is_no_table() -> None:
    assert part_tables({}) == []
