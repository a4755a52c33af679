"""The outcome of a gate for other programs: JUnit XML, Markdown, JSON for github-action-benchmark.

One JUnit test case an assertion. The figures stand in the text of `failure`: some readers drop its message
attribute, suite properties and class names. What could not be decided is an `error`, as is what is invalid:
viewers show what is skipped as if it had passed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from reports.export.markdown import escape

if TYPE_CHECKING:
    from loadgen.measure.assertions import AssertionResult

SUITE = "bench check"
ELEMENTS = {"fail": "failure", "invalid": "error", "undecided": "error"}
ADVICE = {"undecided": ": the interval holds the limit; measure longer, or with bench run --repeat"}
HIGHER_IS_BETTER = ("goodput", "attained")


def render_junit(results: Sequence[AssertionResult], run_name: str) -> str:
    """Return one test suite: a case per assertion, its decision as pass, failure or error."""
    elements = [ELEMENTS.get(result.decision.value) for result in results]
    suite = ElementTree.Element(
        "testsuite",
        name=SUITE,
        tests=str(len(results)),
        failures=str(elements.count("failure")),
        errors=str(elements.count("error")),
    )
    for result, element in zip(results, elements, strict=True):
        case = ElementTree.SubElement(suite, "testcase", classname=run_name, name=result.assertion.text)
        if element is not None:
            decision = result.decision.value
            said = _xml_text(f"{decision}: {result.message}{ADVICE.get(decision, '')}")
            detail = ElementTree.SubElement(case, element, message=said, type=decision)
            detail.text = f"{result.assertion.text}: {said}"
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _xml_text(text: str) -> str:
    """Characters that XML 1.0 cannot hold are replaced."""
    return "".join(c if c in "\t\n\r" or c >= " " else "\N{REPLACEMENT CHARACTER}" for c in text)


def render_gate_markdown(results: Sequence[AssertionResult], run_name: str) -> str:
    """Return the decisions as a table for a step summary."""
    lines = [f"## {SUITE}: {escape(run_name)}", "", "| decision | assertion | seen |", "|---|---|---|"]
    for result in results:
        name = result.decision.value
        decision = name if name == "pass" else f"**{name}**"
        lines.append(f"| {decision} | {escape(result.assertion.text)} | {escape(result.message)} |")
    return "\n".join(lines) + "\n"


def render_action_benchmark(results: Sequence[AssertionResult]) -> dict[str, str]:
    """Return the values in github-action-benchmark's two shapes: smaller and bigger is better."""
    shapes: dict[str, list[dict[str, Any]]] = {"smaller": [], "bigger": []}
    for result in results:
        if result.value is None or result.decision.value == "invalid":
            continue
        assertion = result.assertion
        entry: dict[str, Any] = {
            "name": ".".join(filter(None, (assertion.subject, assertion.statistic)))
            + " vs baseline" * assertion.is_vs_baseline,
            "unit": "ratio" if assertion.is_vs_baseline else _unit(assertion.subject),
            "value": result.value,
            "extra": f"{assertion.text}: {result.decision.value}",
        }
        if result.interval is not None:
            entry["range"] = f"[{result.interval[0]:.6g}, {result.interval[1]:.6g}]"
        shapes["bigger" if assertion.subject in HIGHER_IS_BETTER else "smaller"].append(entry)
    return {shape: json.dumps(entries, indent=2, allow_nan=False) + "\n" for shape, entries in shapes.items()}


def _unit(subject: str) -> str:
    from loadgen.measure.metrics import UNITS

    return {"goodput": "requests/s", "attained": "share", "errors.rate": "share"}.get(subject) or UNITS[
        subject
    ]
