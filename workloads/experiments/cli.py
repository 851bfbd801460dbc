"""``parties experiment``: the paper's figures on the simulated node.

A group whose first word may also be the name of an experiment: ``parties experiment pairs`` is ``parties experiment run pairs``.
"""

from __future__ import annotations

import difflib
import importlib.util
import json
import os
import traceback
from collections.abc import Mapping
from pathlib import Path

import click

from parties.commands.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, MistakeError, write_details
from workloads.experiments.registry import ALL, NAMES

HELP_NAMES = ("-h", "--help")


EPILOG = f"Experiments: {', '.join(NAMES)}; {ALL} for every one."


class ExperimentGroup(click.Group):
    """Takes names of experiments where other groups take a subcommand."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Options before any name are those of ``run``."""
        if args and args[0].startswith("-") and args[0] not in HELP_NAMES:
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """The subcommand, or ``run`` for the name of an experiment. Raises UsageError with the nearest name for anything else."""
        if args[0] in self.commands:
            return super().resolve_command(ctx, args)
        known = (*NAMES, ALL, *self.commands)
        if args[0] not in (*NAMES, ALL):
            near = difflib.get_close_matches(args[0], known, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
            ctx.fail(f"there is no experiment {args[0]!r}; {hint}")
        return super().resolve_command(ctx, ["run", *args])


out_option = click.option(
    "--out",
    "directory",
    default=Path("results/experiments"),
    show_default=True,
    type=click.Path(path_type=Path),
    help="Where tables (CSV), summaries (JSON), figures (PNG), finished points and the report are kept.",
)


@click.group(
    "experiment",
    cls=ExperimentGroup,
    epilog=EPILOG,
    context_settings={"help_option_names": list(HELP_NAMES), "max_content_width": 100},
)
def experiment() -> None:
    """Measure the paper's figures on the simulated node, and show ours beside them.

    \b
    parties experiment list                         what there is
    parties experiment pairs emu --quick            two of them, small grids
    parties experiment all --quick && parties experiment report

    Finished points are kept: Ctrl-C loses no more than what was under way, and the same call goes on from there.
    """  # noqa: D301 - click reads \b as "leave these lines as they are"


@experiment.command("run")
@click.argument("names", nargs=-1, required=True, metavar="NAME...|all")
@click.option(
    "--quick", is_flag=True, help="Smaller grids and one repeat; all of them in minutes. Good for a look, not for claims."
)
@click.option("--jobs", type=click.IntRange(min=1), default=None, help="Processes; as many as there are CPUs unless given.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of arrivals, decisions and samples of grids.")
@out_option
@click.option("--json", "as_json", is_flag=True, help="Print the summaries on standard output; all else goes to standard error.")
def run_command(  # noqa: PLR0913 - one for each option
    *, names: tuple[str, ...], quick: bool, jobs: int | None, seed: int, directory: Path, as_json: bool
) -> int:
    """Run experiments by name; the word "run" may be left out."""
    _need_matplotlib()
    # Imported here: together they take longer than all other commands of the program.
    from rich.console import Console  # noqa: PLC0415

    from workloads.experiments import registry, runner  # noqa: PLC0415
    from workloads.experiments.show import show  # noqa: PLC0415
    from workloads.experiments.store import Store, StoreError  # noqa: PLC0415
    from workloads.experiments.view import ProgressView  # noqa: PLC0415

    console = Console(stderr=as_json)
    call = runner.Call(quick=quick, seed=seed, jobs=jobs or len(os.sched_getaffinity(0)))
    try:
        chosen = registry.experiments_named(names)
        with ProgressView(console) as view:
            outcome = runner.run(chosen, Store(directory), view, call)
    except (registry.UnknownExperimentError, StoreError) as error:
        raise MistakeError(str(error)) from None
    except KeyboardInterrupt:
        click.echo("experiment: interrupted; finished points are kept, and the same call goes on from there", err=True)
        return EXIT_INTERRUPTED
    for summary in outcome.summaries.values():
        show(console, summary, directory)
    if as_json:
        click.echo(json.dumps(outcome.summaries, indent=1))
    return _failed(outcome.failures, directory)


@experiment.command("list")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def list_command(*, as_json: bool) -> None:
    """What experiments there are."""
    _need_matplotlib()
    from workloads.experiments import registry  # noqa: PLC0415 - takes long

    found = registry.experiments_named([registry.ALL])
    if as_json:
        click.echo(
            json.dumps([{"name": e.name, "figure": e.figure, "title": e.title, "method": e.method} for e in found], indent=1)
        )
        return
    for e in found:
        click.echo(f"{e.name:<13} {e.figure:<10} {e.title}")


@experiment.command("report")
@out_option
def report_command(*, directory: Path) -> None:
    """One HTML page of every experiment that was run into a directory; nothing in it is loaded from elsewhere."""
    from workloads.experiments import report  # noqa: PLC0415 - takes long
    from workloads.experiments.store import Store, StoreError  # noqa: PLC0415

    try:
        path = report.write(Store(directory))
    except StoreError as error:
        raise MistakeError(str(error)) from None
    click.echo(str(path))


def _need_matplotlib() -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise MistakeError("experiments draw their figures with matplotlib, which is not installed; pip install 'parties[harness]'")


def _failed(failures: Mapping[str, Exception], directory: Path) -> int:
    for name, error in failures.items():
        cause = error.__cause__ or error
        details = write_details("".join(traceback.format_exception(cause)), directory)
        said = f"{error}: {type(cause).__name__}: {cause}"
        click.echo(f"experiment: {name}: {said}; its finished points are kept; details: {details}", err=True)
    return EXIT_FAILED if failures else EXIT_OK
