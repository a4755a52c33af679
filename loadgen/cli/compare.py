"""`bench compare`: finished runs, or arms that are run now, interleaved, on the same plans."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from loadgen.cli.options import RunOptions, takes_options
from loadgen.cli.plans import make_plan
from loadgen.cli.run import check_flags
from loadgen.cli.several import (
    make_folder,
    measure_one,
    plain_options,
    show_series,
    with_seed,
    write_document,
)
from loadgen.cli.signals import Interruption
from loadgen.cli.windows import share_window
from loadgen.errors import EXIT_GATE_FAILED, EXIT_INVALID, EXIT_OK, EXIT_UNDECIDED, UsageError

if TYPE_CHECKING:
    from loadgen.measure.compare import Arm, ArmComparison, Rule
    from loadgen.measure.replicates import Replicate
    from loadgen.store import Run

PANEL = "Comparison"
DOCUMENT = "compare.json"
PILOT = 8
LENGTH_OF_A_NAME = 40


def _flag(text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=PANEL, **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions(RunOptions):
    """The flags of a run, which all arms share, and the arms. `--repeat` fixes the number of pairs."""

    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="Finished runs, or folders of --repeat: the base first.", metavar="RUN..."),
    ] = None
    arm: Annotated[
        list[str],
        _flag("NAME=URL, or NAME='--max-batch 8': flags of that arm; two or more.", metavar="ARM"),
    ] = ()  # type: ignore[assignment]
    metric: Annotated[
        list[str], _flag("Primary figure: ttft.p99, itl.p99 and e2e.mean are the default.", metavar="NAME")
    ] = ()  # type: ignore[assignment]
    margin: Annotated[float, _flag("Change that does not matter, in %.", min=0)] = 2.0
    detect: Annotated[float, _flag("Change that is to be found 9 times in 10, in %.", min=0)] = 5.0
    max_repeat: Annotated[int, _flag("Most pairs that the pilot may ask for.", min=2)] = 24
    different_plans: Annotated[
        bool, _flag("Compare arms whose plans differ, as what they are.", "--different-plans")
    ] = False
    gate: Annotated[
        bool, _flag("Exit 1 where a primary figure is worse, 4 where one is undecided.", "--gate")
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveArm:
    """An arm that is run now: its name, and the flags that it does not share with the others."""

    name: str
    changes: dict[str, Any]


@dataclass(slots=True, kw_only=True)
class Comparing:
    """A comparison on its way: what was measured so far, by arm."""

    folder: Path
    rule: Rule
    arms: tuple[LiveArm, ...]
    is_same_plans: bool
    order: list[str] = field(default_factory=list)
    measured: dict[str, list[Replicate]] = field(default_factory=dict)

    def compare(self) -> dict[str, Any]:
        """Compare the replicates that every arm has, and write them down."""
        from loadgen.measure.compare import Arm

        num = min((len(self.measured.get(arm.name, ())) for arm in self.arms), default=0)
        arms = [
            Arm(name=arm.name, replicates=tuple(self.measured.get(arm.name, ())[:num])) for arm in self.arms
        ]
        document = compare_all(arms, self.rule, facts={"order": self.order}, is_same_plans=self.is_same_plans)
        write_document(self.folder, DOCUMENT, document)
        return document


@takes_options
def compare(ctx: typer.Context, options: CompareOptions) -> None:
    """Compare arms on the same plans: better, worse, equivalent within the margin, or undecided."""
    rule = make_rule(options)
    arms = read_arms(ctx, options)
    if options.runs:
        if arms:
            raise UsageError("give finished runs, or arms to be run: not both")
        document = compare_finished(options.runs, rule, is_same_plans=not options.different_plans)
        finish(document, options, folder=None)
    if len(arms) < 2:
        raise UsageError(
            "give two or more arms: --arm base=URL --arm new=URL, --policy A,B, or two finished runs"
        )
    base = replace(plain_options(options), policy=options.policy.split(",")[0])
    check_flags(base)
    with Interruption() as interruption:
        comparing = run_arms(ctx, options, base, arms, rule, interruption)
    document = comparing.compare()
    finish(document, options, folder=comparing.folder, code=interruption.exit_code)


def make_rule(options: CompareOptions) -> Rule:
    """Read the flags that decide."""
    from loadgen.measure.compare import Rule, check_primary

    if not options.detect > options.margin:
        raise UsageError(f"--detect {options.detect:g} must be more than --margin {options.margin:g}")
    return Rule(
        primary=check_primary(options.metric), margin=options.margin / 100, detect=options.detect / 100
    )


def read_arms(ctx: typer.Context, options: CompareOptions) -> tuple[LiveArm, ...]:
    """Turn `--arm` and `--policy A,B` into arms; UsageError says what is wrong with one."""
    arms = [parse_arm(ctx, text) for text in options.arm]
    policies = options.policy.split(",")
    if len(policies) > 1:
        if arms:
            raise UsageError("--policy A,B names the arms: --arm does not go with it")
        arms = [LiveArm(name=policy, changes={"policy": policy}) for policy in policies]
    names = [arm.name for arm in arms]
    if len(set(names)) < len(names):
        raise UsageError(f"arms need names of their own: {', '.join(names)}")
    return tuple(arms)


def parse_arm(ctx: typer.Context, text: str) -> LiveArm:
    """Read `NAME=URL` or `NAME=FLAGS`."""
    name, equals, value = text.partition("=")
    is_name = 0 < len(name) <= LENGTH_OF_A_NAME and all(c.isalnum() or c in "._-" for c in name)
    if not equals or not is_name or not value.strip():
        raise UsageError(f"--arm {text!r}: write NAME=URL or NAME='--flag value'")
    if not value.lstrip().startswith("-"):
        return LiveArm(name=name, changes={"target": [value.strip()]})
    try:
        words = shlex.split(value)
    except ValueError as exc:
        raise UsageError(f"--arm {text!r}: {exc}") from exc
    own = ctx.command.make_context(f"--arm {name}", words)
    shared = {item.name for item in fields(RunOptions)} - {"out", "name", "json", "seed", "repeat", "config"}
    changes = {}
    for key, found in own.params.items():
        source = own.get_parameter_source(key)
        if source is not None and source.name == "COMMANDLINE":
            if key not in shared:
                raise UsageError(f"--arm {text!r}: --{key.replace('_', '-')} is not an arm's own")
            changes[key] = found
    return LiveArm(name=name, changes=changes)


def compare_finished(runs: Sequence[Path], rule: Rule, *, is_same_plans: bool) -> dict[str, Any]:
    """Compare run folders; the first is the base."""
    from loadgen.measure.compare import Arm
    from loadgen.measure.replicates import Replicate, load_replicates

    if len(runs) < 2:
        raise UsageError("one run is no comparison: give two or more")
    names = [path.resolve().name for path in runs]
    if len(set(names)) < len(names):
        names = [str(path) for path in runs]
    arms = [
        Arm(name=name, replicates=tuple(Replicate.of(run) for run in load_replicates(path)))
        for name, path in zip(names, runs, strict=True)
    ]
    return compare_all(arms, rule, facts={"order": []}, is_same_plans=is_same_plans)


def compare_all(
    arms: Sequence[Arm], rule: Rule, *, facts: dict[str, Any], is_same_plans: bool = True
) -> dict[str, Any]:
    """Compare every arm with the first; several arms share the error among them."""
    from loadgen.measure.compare import compare_arms, describe_comparison

    base, *others = arms
    rule = replace(rule, num_arms=len(others))
    comparisons: list[ArmComparison] = [
        compare_arms(base, other, rule, is_same_plans=is_same_plans) for other in others
    ]
    return describe_comparison(arms, comparisons, rule, facts)


def run_arms(
    ctx: typer.Context,
    options: CompareOptions,
    base: RunOptions,
    arms: tuple[LiveArm, ...],
    rule: Rule,
    interruption: Interruption,
) -> Comparing:
    """Run a pilot, plan by its spread, and run what is still wanting; `--repeat` sets the number instead."""
    first = options.repeat or min(PILOT, options.max_repeat)
    check_plans(base, arms, is_told=options.different_plans)
    comparing = Comparing(
        folder=make_folder(options, "compare"),
        rule=rule,
        arms=arms,
        is_same_plans=not options.different_plans,
    )
    run_replicates(ctx, comparing, base, range(first), interruption)
    if options.repeat is None and interruption.exit_code is None:
        planned = min(comparing.compare()["num_planned"], options.max_repeat)
        if planned > first and not options.quiet:
            typer.echo(f"the pilot asks for {planned} pairs", err=True)
        run_replicates(ctx, comparing, base, range(first, planned), interruption)
    return comparing


def check_plans(base: RunOptions, arms: Sequence[LiveArm], *, is_told: bool) -> None:
    """Refuse arms that would not send the same requests; flags of an arm are found wrong here too."""
    digests = {}
    for arm in arms:
        one = replace(base, **arm.changes)
        check_flags(one)
        digests[arm.name] = make_plan(one).digest()
    if len(set(digests.values())) > 1 and not is_told:
        said = ", ".join(f"{name} {digest}" for name, digest in digests.items())
        raise UsageError(
            f"the arms would send different requests (plans {said}): say --different-plans to do so"
        )


def run_replicates(
    ctx: typer.Context,
    comparing: Comparing,
    base: RunOptions,
    replicates: range,
    interruption: Interruption,
) -> None:
    """Run some replicates of all arms, interleaved; stops early where it is interrupted."""
    import numpy as np

    from loadgen.measure.replicates import Replicate
    from loadgen.stats.arms import interleave

    rng = np.random.default_rng([base.seed, replicates.start])
    runs: dict[str, Run] = {}
    for number, place in interleave(len(comparing.arms), replicates, rng):
        arm = comparing.arms[place]
        one = replace(with_seed(base, number), **arm.changes, out=comparing.folder)
        one = replace(one, name=f"{arm.name}-seed-{one.seed}")
        measured = measure_one(ctx, one, interruption)
        if interruption.exit_code is not None:
            return
        comparing.order.append(measured.path.name)
        runs[arm.name] = measured
        if not base.quiet:
            typer.echo(f"{arm.name}: seed {one.seed} done", err=True)
        if len(runs) == len(comparing.arms):
            done = list(runs.values())
            for name, run in zip(runs, share_window(done) if comparing.is_same_plans else done, strict=True):
                comparing.measured.setdefault(name, []).append(Replicate.of(run))
            runs.clear()


def finish(
    document: dict[str, Any], options: CompareOptions, *, folder: Path | None, code: int | None = None
) -> NoReturn:
    """Print the comparison and end the command."""
    from reports.compare import print_comparison

    show_series(document, options, partial(print_comparison, wide=options.wide), folder, options.runs or ())
    raise typer.Exit(code or exit_code(document, is_gate=options.gate))


def exit_code(document: dict[str, Any], *, is_gate: bool) -> int:
    """3 without a valid pair; with --gate 1 where a primary figure is worse, 4 where one is undecided."""
    comparisons = document["comparisons"]
    if any(one["num_pairs"] == 0 for one in comparisons):
        return EXIT_INVALID
    changes = {f["change"] for one in comparisons for f in one["figures"] if f["is_primary"]}
    if not is_gate:
        return EXIT_OK
    if "worse" in changes:
        return EXIT_GATE_FAILED
    return EXIT_UNDECIDED if "undecided" in changes or not changes else EXIT_OK
