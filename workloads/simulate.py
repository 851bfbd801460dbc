"""``parties simulate``: services on the simulated node, in seconds and without root."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

import click
from click.shell_completion import CompletionItem

from parties.commands.errors import MistakeError
from parties.commands.names import NameType
from parties.commands.options import DURATION_TYPE
from parties.model import NS_PER_S, Decision, Observation
from parties.record import Timing

if TYPE_CHECKING:
    from workloads.simulated.timeline import Run

PIPE_WIDTH = 110  # of the view where there is no terminal
PICTURES = (".pdf", ".png", ".svg")
PROGRESS_EVERY_S = 0.2


class ServiceType(click.ParamType[tuple[str, str]]):
    """NAME=LOAD as two words. Whether there are such a service and such a load is found out later, with everything else."""

    name = "name=load"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Name and load as they are written."""
        if isinstance(value, tuple):
            return value
        name, equals, load = (word.strip() for word in str(value).partition("="))
        if not (name and equals and load):
            self.fail(f"{str(value)!r} is no service with its load; say NAME=LOAD, for example memcached=0.4", param, ctx)
        return name, load

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Names with their equals sign; the load is the caller's."""
        del ctx, param
        return [CompletionItem(f"{name}=") for name in _known("services")() if name.startswith(incomplete)]


def _known(kind: str) -> Callable[[], Sequence[str]]:
    """The names of one kind, when they are asked for: looking them up loads the simulator."""

    def names() -> Sequence[str]:
        from workloads.simulated.catalogue import known  # noqa: PLC0415 - as said above

        return known(kind)

    return names


def _anything(_text: str) -> bool:
    """The name may be that of a file, and whoever reads it tells more than that it is unknown."""
    return True


@click.command()
@click.option("--service", "services", type=ServiceType(), multiple=True, help="A service and its load; once for each.")
@click.option("--scenario", "named", type=NameType("scenario", _known("scenarios"), free=_anything), help="A mix by its name.")
@click.option("--best-effort", is_flag=True, help="With a best-effort job beside the services.")
@click.option("--policy", type=NameType("policy", _known("policies")), help="What decides.  [default: parties]")
@click.option("--node", type=NameType("node", _known("nodes"), free=_anything), help="The server.  [default: e5-2699v4]")
@click.option("--duration", type=DURATION_TYPE, help="How long, in simulated time.  [default: 90s]")
@click.option("--seed", type=click.IntRange(min=0), help="Of arrivals and decisions.  [default: 1]")
@click.option("--record", type=click.Path(path_type=Path), help="Write the record to this file; parties replay reads it.")
@click.option("--save-plot", "plot", type=click.Path(path_type=Path), help="Draw the run into this file (.png, .svg, .pdf).")
@click.option("--list", "listing", is_flag=True, help="Say which nodes, services, scenarios and policies there are.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def simulate(  # noqa: PLR0913 - one for each option
    *,
    services: Sequence[tuple[str, str]],
    named: str | None,
    best_effort: bool,
    policy: str | None,
    node: str | None,
    duration: int | None,
    seed: int | None,
    record: Path | None,
    plot: Path | None,
    listing: bool,
    as_json: bool,
) -> None:
    """Run services on a model of a server, under the real controller, in virtual time.

    LOAD is a fraction of the service's maximum load, or a file with a time in seconds and a fraction on each line. A service
    that is named twice runs twice (memcached and memcached-2). With --scenario, other options change what it says.

    \b
    Examples:
      parties simulate --list
      parties simulate --service memcached=0.4 --service xapian=0.2 --best-effort
      parties simulate --service memcached=ramp.txt --service nginx=0.3 --duration 300s --save-plot run.png
      parties simulate --service moses=0.5 --service xapian=0.5 --policy heracles --json
      parties simulate --service xapian=0.6 --record run.jsonl && parties replay run.jsonl --policy equal
    """  # noqa: D301 - click reads \b as "leave these lines as they are"
    from workloads.simulated import catalogue, play, request  # noqa: PLC0415 - slow to import, and not needed for the help

    if listing:
        click.echo(json.dumps(catalogue.as_json(), indent=1) if as_json else catalogue.listing())
        return
    _check_plot(plot)
    wanted = request.Wanted(
        services=tuple(services),
        scenario=named,
        best_effort=best_effort,
        policy=policy,
        node=node,
        duration_s=None if duration is None else duration / NS_PER_S,
        seed=seed,
    )
    try:
        simulation = request.prepared(wanted)
    except request.MISTAKES as error:
        raise MistakeError(str(error)) from error
    with Progress(simulation.scenario.duration_s, shown=sys.stderr.isatty()) as progress:
        run = play.played(simulation, record=record, listeners=(progress,))
    if plot is not None:
        _draw(run, plot)
    if as_json:
        click.echo(json.dumps(run.result.as_json()))
    else:
        play.show(run, pipe_width=PIPE_WIDTH)


class Progress:
    """Tells on a terminal how far a run is, where it takes long enough to be asked."""

    def __init__(self, duration_s: float, *, shown: bool, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._duration_s = duration_s
        self._shown = shown
        self._clock_s = clock_s
        self._due_s = clock_s() + PROGRESS_EVERY_S
        self._said = False

    def tick(self, observation: Observation, decision: Decision, timing: Timing) -> None:
        """Take in one interval."""
        del decision, timing
        if self._shown and self._clock_s() >= self._due_s:
            self._due_s = self._clock_s() + PROGRESS_EVERY_S
            self._said = True
            click.echo(f"\rsimulated {observation.now_ns / NS_PER_S:.0f} of {self._duration_s:g} s", nl=False, err=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._said:
            click.echo("\r\033[K", nl=False, err=True)


def _check_plot(plot: Path | None) -> None:
    """Whatever can be wrong with a picture is said before the run."""
    if plot is None:
        return
    if plot.suffix.lower() not in PICTURES:
        raise MistakeError(f"--save-plot {plot}: the name of a picture ends in {', '.join(PICTURES)}")
    directory = plot.absolute().parent
    if directory.is_dir() and not os.access(directory, os.W_OK | os.X_OK):
        raise MistakeError(f"--save-plot {plot}: nothing can be written to {directory}")
    if not directory.is_dir() or plot.is_dir():
        raise MistakeError(f"--save-plot {plot}: not a file in a directory that exists")
    if importlib.util.find_spec("matplotlib") is None:
        raise MistakeError("--save-plot draws with matplotlib, which is not installed; pip install 'parties[harness]'")


def _draw(run: Run, plot: Path) -> None:
    from workloads.simulated.plot import draw  # noqa: PLC0415 - matplotlib is optional, and slow to import

    try:
        draw([run], plot)
    except OSError as error:
        raise MistakeError(f"--save-plot {plot}: {error.strerror or error}") from error
