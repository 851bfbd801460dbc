"""Commands of the harness, which the command line takes up through its entry points."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from types import FrameType

import click
from rich.console import Console

from workloads.demo.experiment import CACHE, Options, expected_s, run
from workloads.demo.live import View, final_table
from workloads.demo.plan import FULL, MANAGERS, QUICK, Plan
from workloads.demo.preflight import Machine, look, missing
from workloads.demo.results import sentences
from workloads.sandbox import SandboxError

EXIT_FAILED, EXIT_MISTAKE, EXIT_INTERRUPTED, EXIT_TERMINATED = 1, 2, 130, 143


def _managers(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    unknown = [name for name in names if name not in MANAGERS]
    if unknown or not names:
        raise click.BadParameter(f"{', '.join(unknown) or 'none given'}; choose from {', '.join(MANAGERS)}")
    return names


@click.command()
@click.option("--quick", is_flag=True, help="25 s for each manager, to see that it works; too short for claims.")
@click.option("--seed", default=1, show_default=True, help="Of arrivals, keys and decisions; the same for every manager.")
@click.option("--managers", default=",".join(MANAGERS), show_default=True, callback=_managers, help="Which to try, in this order.")
@click.option(
    "--out",
    "results",
    default=Path("results"),
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Where demo.json, demo.png and the raw reports go.",
)
@click.option("--recalibrate", is_flag=True, help="Measure targets and maximum loads anew.")
@click.option("--json", "as_json", is_flag=True, help="Print demo.json on standard output; all else goes to standard error.")
def demo(  # noqa: PLR0913 - one for each option
    *, quick: bool, seed: int, managers: tuple[str, ...], results: Path, recalibrate: bool, as_json: bool
) -> None:
    """Keep two services and a best-effort job within their tail-latency targets on this machine, under four managers in turn.

    Needs root. Takes about six minutes; Ctrl-C at any time leaves nothing behind.
    """
    found = look()
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
    console.print(f"{options.results / 'demo.json'}, {options.results / 'demo.png'}", highlight=False)
    if as_json:
        click.echo(json.dumps(summary, indent=1))


def _terminate(_number: int, _frame: FrameType | None) -> None:
    sys.exit(EXIT_TERMINATED)
