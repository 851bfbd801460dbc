"""Where the daemon's files are, and options for subcommands that look at them from outside."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from monitors.topology import Topology, TopologyError
from parties.commands.errors import STATE_DIRECTORY

CONFIGURATION = Path("/etc/parties/parties.toml")
RUNTIME_DIRECTORY = Path("/run/parties")


@dataclass(frozen=True, slots=True)
class Directories:
    """The state directory has the journal, the runtime directory lock and sockets."""

    state: Path
    runtime: Path

    def options(self) -> str:
        """What has to be said on a command line to mean these, with a blank before each word."""
        usual = Directories(STATE_DIRECTORY, RUNTIME_DIRECTORY)
        words = ["--state-directory", str(self.state)] if self.state != usual.state else []
        words += ["--runtime-directory", str(self.runtime)] if self.runtime != usual.runtime else []
        return "".join(f" {shlex.quote(word)}" for word in words)


def directory_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options; the command gets them as ``directories``."""

    @click.option("-c", "--config", "file", type=click.Path(path_type=Path), help="Take the directories from this configuration.")
    @click.option("--state-directory", type=click.Path(path_type=Path), help=f"Where the journal is.  [default: {STATE_DIRECTORY}]")
    @click.option(
        "--runtime-directory", type=click.Path(path_type=Path), help=f"Where the lock is.  [default: {RUNTIME_DIRECTORY}]"
    )
    @functools.wraps(command)
    def with_directories(file: Path | None, state_directory: Path | None, runtime_directory: Path | None, **others: object) -> int:
        return command(_chosen(file, state_directory, runtime_directory), **others)

    return with_directories


def _chosen(file: Path | None, state: Path | None, runtime: Path | None) -> Directories:
    """The directories that were given, else those of the configuration, else the usual ones. Raises ConfigError."""
    if file is not None:
        from parties.config import load  # noqa: PLC0415 - slow to import, and seldom needed here

        settings = load(file).settings
        return Directories(state or Path(settings.state_directory), runtime or Path(settings.runtime_directory))
    return Directories(state or STATE_DIRECTORY, runtime or RUNTIME_DIRECTORY)


def topology_now() -> str:
    """The machine's fingerprint, "" where its shape cannot be read."""
    try:
        return Topology.read().fingerprint
    except TopologyError:
        return ""
