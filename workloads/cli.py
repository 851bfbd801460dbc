"""Commands of the harness, which the command line takes up through its entry points."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import click
from rich.console import Console

from workloads.demo.experiment import CACHE, Options, expected_s, run
from workloads.demo.live import View, final_table
from workloads.demo.plan import FULL, MANAGERS, QUICK, Plan
from workloads.demo.preflight import Machine, indivisible, look, missing
from workloads.demo.results import sentences
from workloads.sandbox import SandboxError

EXIT_FAILED, EXIT_MISTAKE, EXIT_INTERRUPTED, EXIT_TERMINATED = 1, 2, 130, 143


def _names(_context: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    return None if value is None else tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))


@click.command()
@click.option("--quick", is_flag=True, help="25 s for each manager, to see that it works; too short for claims.")
@click.option("--seed", default=1, show_default=True, help="Of arrivals, keys and decisions; the same for every manager.")
@click.option("--managers", callback=_names, help="Which to try, in this order, with commas between them.  [default: all]")
@click.option(
    "--out",
    "results",
    default=Path("results"),
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Where demo.json, demo.png and the raw reports go.",
)
@click.option("--recalibrate", is_flag=True, help="Measure targets and maximum loads anew.")
@click.option(
    "--platform",
    type=click.Choice(["auto", "host", "simulated"]),
    default="auto",
    show_default=True,
    help="This machine, or a model of a server; auto: the model where this user cannot divide the machine.",
)
@click.option("--json", "as_json", is_flag=True, help="Print demo.json on standard output; all else goes to standard error.")
def demo(  # noqa: PLR0913 - one for each option
    *, quick: bool, seed: int, managers: tuple[str, ...] | None, results: Path, recalibrate: bool, platform: str, as_json: bool
) -> None:
    """Show what four managers make of the same services beside a best-effort job.

    As root with control groups: two real services on this machine. Takes about six minutes; Ctrl-C at any time leaves nothing
    behind. Elsewhere: three services on a model of the paper's server, in seconds; --quick and --recalibrate change nothing there.
    """
    found = look()
    if platform == "simulated" or (platform == "auto" and indivisible(found)):
        reasons = () if platform == "simulated" else indivisible(found)
        _simulated(reasons, managers, seed=seed, results=results, as_json=as_json)
        return
    managers = _checked(managers, MANAGERS)
    if problems := missing(found):
        for problem in problems:
            click.echo(f"demo: {problem}", err=True)
        sys.exit(EXIT_MISTAKE)
    assert found.cpus is not None  # noqa: S101 - else it were among the problems
    plan = Plan(timeline=QUICK if quick else FULL, seed=seed, managers=managers, quick=quick)
    options = Options(plan, results.resolve(), recalibrate)
    console = Console(stderr=as_json)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        with View(console, total_s=expected_s(options, cached=any(CACHE.glob("calibration-*.json")))) as view:
            summary = run(Machine(found.mounts, found.cpus), options, view)
    except SandboxError as error:
        click.echo(f"demo: {error}", err=True)
        sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:
        click.echo("demo: interrupted; everything that it had made is removed", err=True)
        sys.exit(EXIT_INTERRUPTED)
    console.print(final_table(summary))
    console.print(sentences(summary), highlight=False)
    _end(console, summary, options.results, as_json=as_json)


def _simulated(reasons: Sequence[str], managers: tuple[str, ...] | None, *, seed: int, results: Path, as_json: bool) -> None:
    from workloads.demo import simulated  # noqa: PLC0415 - the simulator and matplotlib, which the machine's demo needs only later

    options = simulated.Options(_checked(managers, simulated.MANAGERS), seed, results.resolve())
    for line in simulated.explanation(reasons):
        click.echo(line, err=as_json)
    console = Console(stderr=as_json)
    try:
        summary = simulated.run(options, lambda line: console.print(line, highlight=False, soft_wrap=True))
    except OSError as error:
        click.echo(f"demo: {error.filename or options.results}: {error.strerror}; name another directory with --out", err=True)
        sys.exit(EXIT_MISTAKE)
    console.print(simulated.final_table(summary))
    console.print(simulated.sentences(summary), highlight=False)
    _end(console, summary, options.results, as_json=as_json)


def _end(console: Console, summary: Mapping[str, Any], results: Path, *, as_json: bool) -> None:
    console.print(f"{results / 'demo.json'}, {results / 'demo.png'}", highlight=False)
    if as_json:
        click.echo(json.dumps(summary, indent=1))


def _checked(managers: tuple[str, ...] | None, known: tuple[str, ...]) -> tuple[str, ...]:
    """The managers to try. Raises BadParameter, with those that there are."""
    if managers is None:
        return known
    unknown = [name for name in managers if name not in known]
    if unknown or not managers:
        raise click.BadParameter(f"{', '.join(unknown) or 'none given'}; choose from {', '.join(known)}", param_hint="--managers")
    return managers


def _terminate(_number: int, _frame: FrameType | None) -> None:
    sys.exit(EXIT_TERMINATED)
