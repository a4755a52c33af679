from __future__ import annotations

from typing import Any

import pytest

from reports import words
from reports.quantities import MILLISECONDS


def summary(**changes: Any) -> dict[str, Any]:
    metric = {"n": 600, "p50": 0.05, "p95": 0.1, "p99": 0.2, "max": 0.4, "n_eff": 300.0, "carries": "p95"}
    return {
        "verdict": {"status": "valid", "reasons": [], "findings": [], "warnings": []},
        "counts": {"scheduled": 600, "ok": 600, "failed": 0},
        "rates": {"offered_per_s": 20.0},
        "metrics": {"ttft_s": metric, "itl_s": {**metric, "p50": 0.01, "p99": 0.05, "carries": "p99"}},
        **changes,
    }


def test_the_answer_names_rate_first_token_gaps_and_share_by_the_percentiles_that_are_carried() -> None:
    assert words.answer(summary()) == (
        "At 20.0 requests/s offered, half of the requests saw their first token within 50.0 ms and 95 % "
        "within 100 ms; then a token every 10.0 ms (median gap, p99 50.0 ms). 600 of 600 requests succeeded."
    )


def test_the_answer_claims_no_percentile_of_a_handful() -> None:
    few = {"ttft_s": {"n": 3, "p50": 0.05, "p99": 0.4, "max": 0.4}}
    text = words.answer(summary(metrics=few, counts={"scheduled": 3, "ok": 3}))
    assert "99 %" not in text
    assert "and all within 400 ms" in text


@pytest.mark.parametrize(
    ("changes", "words_expected"),
    [
        ({"counts": {"scheduled": 0, "ok": 0}}, "Nothing was scheduled"),
        ({"counts": {"scheduled": 9, "ok": 0}}, "none of 9 requests succeeded"),
        ({"metrics": {"e2e_s": {"n": 9, "p50": 1.5}}}, "half of the answers were complete within 1.50 s"),
        ({"metrics": {}}, "none of them lies in the measured window"),
    ],
)
def test_the_answer_says_what_there_is(changes: dict[str, Any], words_expected: str) -> None:
    assert words_expected in words.answer(summary(**changes))


def test_what_a_run_carries_is_told_where_it_is_not_the_p99() -> None:
    told = dict(words.context_lines({}, summary()))["carries"]
    assert told == ("TTFT p95, ITL p99 (ten independent values beyond); TTFT p99 wants some 2,000 requests")
    enough = {"n": 4000, "n_eff": 2000.0, "carries": "p99"}
    assert "carries" not in dict(words.context_lines({}, summary(metrics={"ttft_s": enough})))
    assert "carries" not in dict(words.context_lines({}, summary(metrics={})))


def test_notices_come_reasons_first() -> None:
    said = [{"code": name, "message": "m", "advice": "a"} for name in ("one", "two", "three")]
    verdict = {"status": "invalid", "warnings": said[:1], "findings": said[1:2], "reasons": said[2:]}
    listed = words.notices(summary(verdict=verdict))
    assert [(notice.severity, notice.code) for notice in listed] == [
        ("reason", "three"),
        ("finding", "two"),
        ("warning", "one"),
    ]
    assert words.status(summary(verdict=verdict)) == "INVALID"


@pytest.mark.parametrize(
    ("metric", "text"),
    [
        ({"n": 600, "ci": {"p99": [0.18, 0.25]}}, "180 to 250"),
        ({"n": 600, "ci": {"p99": None}}, "too few samples"),
        ({"n": 600, "ci": {}}, "–"),
        ({"n": 0, "ci": {"p99": None}}, "–"),
    ],
)
def test_an_interval_is_shown_or_its_absence_explained(metric: dict[str, Any], text: str) -> None:
    assert words.interval(metric, "p99", MILLISECONDS) == text


def test_context_holds_only_what_is_known() -> None:
    known = summary(
        metrics={},
        window={"start_s": 3.0, "end_s": 30.0, "method": "auto (MSER-5)"},
        engine={"busy_fraction": 0.41},
        arrivals={"rate_per_s": None, "asked": "poisson at 20 /s"},
    )
    assert dict(words.context_lines({}, known)) == {
        "window": "requests scheduled from 3.0 s to 30.0 s; warm-up: auto (MSER-5)",
        "engine": "busy 41 % of the time",
    }
    assert words.context_lines({}, summary(metrics={})) == []


def test_objectives_goodput_stamps_and_server_are_told() -> None:
    certificate = {"certificate": {"is_certified": False, "confidence": 0.99, "num_missing": None}}
    slo = {
        "targets": [
            {"metric": "ttft_s", "statistic": "p99", "limit": 0.5, "value": 0.275, "is_met": True}
            | certificate,
            {"metric": "e2e_s", "statistic": None, "limit": 1.0, "value": None, "is_met": None},
            {"metric": "e2e_s", "statistic": "max", "limit": 1.0, "value": None, "n": 9, "is_met": False},
        ],
        "attained_fraction": 0.93,
        "goodput_per_s": 18.2,
    }
    little = {"in_flight": 8.0, "rate_times_time": 6.0, "ratio": 1.33}
    stamps = {"source": "kernel", "exact_fraction": 0.88, "uncertainty_p99_s": 0.0112}
    server = {"histograms": {"ttft_s": {"explanation": "our mean is 2 ms above the server's"}, "queue_s": {}}}
    assert words.context_lines(
        {}, summary(metrics={}, slo=slo, little=little, stamps=stamps, server=server)
    ) == [
        ("SLO", "ttft.p99 275 ms, limit 500 ms: met, not certified at 99 % confidence"),
        ("SLO", "e2e.max infinite (requests failed), limit 1.00 s: missed"),
        ("goodput", "18.2 requests/s: 93 % of all requests had e2e within 1.00 s"),
        ("Little", "8.00 in flight on average, but rate times time is 6.00: the window is not steady"),
        ("stamps", "from the kernel, 88 % exact, uncertain by 11.2 ms at p99"),
        ("server", "TTFT: our mean is 2 ms above the server's"),
    ]


def test_a_simulation_is_never_called_a_measurement() -> None:
    valid = {"verdict": {"status": "valid"}}
    assert words.claim({"target": {"kind": "url"}}, valid) == "the measurement can be trusted"
    assert words.claim({}, {"verdict": {"status": "invalid"}}) == "the measurement cannot be trusted"
    assert "nothing was measured" in words.claim({"target": {"kind": "simulated engine"}}, valid)


def test_codes_tell_warnings_from_what_was_found() -> None:
    verdict = {"warnings": [{"code": "few"}], "findings": [{"code": "unstable"}], "reasons": []}
    assert words.codes({"verdict": verdict}) == "unstable; warns: few"
    assert words.codes({"verdict": {}}) == ""
