"""Runs a simulation and shows what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from parties.loop import Listener
from simulator.run import Simulation
from workloads.simulated.timeline import Run, Timeline
from workloads.simulated.view import view


def played(simulation: Simulation, *, record: Path | None = None, listeners: Sequence[Listener] = ()) -> Run:
    """Run it from its start to its end. Raises RecordError."""
    timeline = Timeline()
    return Run(simulation.run((timeline, *listeners), record=record), timeline)


def show(run: Run, *, pipe_width: int) -> None:
    """Print the view of a run, as wide as the terminal is."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=pipe_width)
    console.print(view(run, width=console.width, ascii_only=console.options.ascii_only), highlight=False)
