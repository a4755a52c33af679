"""`bench doctor`: what this machine can measure, in under a minute."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from loadgen.cli.signals import Interruption
from loadgen.errors import EXIT_INVALID, UsageError

if TYPE_CHECKING:
    from loadgen.doctor import Step

Rate = Annotated[float | None, typer.Option("--rate", help="Requests per second of the run planned.")]
Tokens = Annotated[
    int, typer.Option("--output-tokens", help="Mean length of the answers of that run.", min=1)
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Realtime = Annotated[bool, typer.Option(help="Real-time scheduling of load processes, where permitted.")]
EqualArms = Annotated[
    bool, typer.Option("--aa", help="Measure by how much equal runs differ on this machine.")
]
Flags = Annotated[
    str, typer.Option("--run", help="With --aa: flags of those runs, as of bench run.", metavar="FLAGS")
]
Pairs = Annotated[int, typer.Option("--pairs", help="With --aa: how many pairs of runs.")]
HEADING = f"""
This client against a server that logs its own writes. Times in ms: p50 / p99, else p99.
[bold]{"requests/s":>10} {"tokens/s":>9} {"TTFT error":>15} {"ITL error":>15} {"send lag":>9} {"exact":>7} \
{"us/token":>10} {"server late":>12}[/]"""


def doctor(
    ctx: typer.Context,
    rate: Rate = None,
    output_tokens: Tokens = 64,
    as_json: Json = False,
    realtime: Realtime = True,
    aa: EqualArms = False,
    run: Flags = "",
    pairs: Pairs = 8,
) -> None:
    """Tell the limits of this machine and this client's own error, at growing rates or at the one planned."""
    if aa:
        from loadgen.cli.noise import measure_noise

        measure_noise(ctx, run, pairs, as_json=as_json)
        return
    if run:
        raise UsageError("--run belongs to --aa: it says which runs are compared with their equals")
    from rich.console import Console

    from loadgen import doctor as examine

    if rate is not None and not 0 < rate < float("inf"):
        raise UsageError(f"--rate {rate:g}: give a positive number of requests per second")
    console = Console(quiet=as_json, highlight=False, soft_wrap=True)
    checks = examine.check_machine()
    for check in checks:
        console.print(f"{check.name:18} {check.value}")
        for line in check.advice.splitlines():
            console.print(f"{'':18} [yellow]{line}[/]")
    steps = []
    with Interruption() as interruption:
        stop, planned = interruption.stop, None
        if rate is not None:
            planned = examine.try_planned(rate, output_tokens, stop, realtime=realtime)
        console.print(HEADING)
        for step in [planned] if planned else examine.climb(stop, realtime=realtime):
            steps.append(step)
            console.print(row_of(step))
    if as_json:
        document = {
            "checks": [check._asdict() for check in checks],
            "steps": [{**asdict(step), "tokens_per_s": step.tokens_per_s} for step in steps],
        }
        typer.echo(json.dumps(document, allow_nan=False))
    if interruption.exit_code is not None:
        raise typer.Exit(interruption.exit_code)
    console.print(conclusion(steps, is_planned=rate is not None))
    if steps and not any(step.is_within_limit for step in steps):
        raise typer.Exit(EXIT_INVALID)


def row_of(step: Step) -> str:
    """One rate, under HEADING."""
    ttft = f"{_ms(step.ttft_error_p50_ms)} / {_ms(step.ttft_error_p99_ms)}"
    itl = f"{_ms(step.itl_error_p50_ms)} / {_ms(step.itl_error_p99_ms)}"
    lag = _ms(step.send_lag_p99_ms)
    return (
        f"{step.rate_per_s:10.4g} {step.tokens_per_s:9,.0f} {ttft:>15} {itl:>15} {lag:>9}"
        f" {step.alone_fraction:7.1%} {step.cpu_us_per_token:10.1f} {_ms(step.server_late_ms):>12}"
    )


def conclusion(steps: list[Step], *, is_planned: bool) -> str:
    """Say in words what the steps mean for a measurement."""
    from loadgen.doctor import LIMIT_MS

    fair = all(step.is_judged_fairly for step in steps)
    doubt = "" if fair else " The server itself was late at some rates: other work disturbs this machine."
    if is_planned:
        (step,) = steps
        error, lag = _ms(step.error_ms), _ms(step.send_lag_p99_ms)
        can = "can" if step.is_within_limit else "cannot"
        return (
            f"The run planned {can} be measured here to {LIMIT_MS:g} ms: at {step.tokens_per_s:,.0f} "
            f"tokens/s this client errs by {error} ms and sends {lag} ms late (p99).{doubt}"
        )
    good = [step.tokens_per_s for step in steps if step.is_within_limit]
    bad = [step.tokens_per_s for step in steps if not step.is_within_limit]
    what = "The send lag" if any(map(is_late, steps)) else "The error"
    if not bad:
        words = f"stay below {LIMIT_MS:g} ms up to the highest rate tried, {max(good):,.0f} tokens/s"
        return f"Error and send lag {words}.{doubt}"
    if good and max(good) > min(bad):
        return f"No clear limit: {_rates(bad)} tokens/s failed where {max(good):,.0f} did not.{doubt}"
    words = f"between {max(good):,.0f} and" if good else "at the lowest rate tried already,"
    return f"{what} passes {LIMIT_MS:g} ms {words} {min(bad):,.0f} tokens/s.{doubt}"


def is_late(step: Step) -> bool:
    """Whether requests left too late, though the client saw right what came of them."""
    from loadgen.doctor import LIMIT_MS

    return not step.is_within_limit and step.error_ms is not None and step.error_ms < LIMIT_MS


def _rates(values: list[float]) -> str:
    return ", ".join(f"{value:,.0f}" for value in values)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
