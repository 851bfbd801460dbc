"""``parties check``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from parties.commands.errors import EXIT_MISTAKE, EXIT_OK
from parties.config import ConfigError, Configuration, Problem, load
from parties.config_machine import check_machine
from parties.settings import ControlSettings

_RESOURCES = ("cores", "memory", "disk", "network")


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--no-machine", is_flag=True, help="Look at the file alone, not at this machine.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(file: Path, *, no_machine: bool, as_json: bool) -> int:
    """Say everything that is wrong with the configuration FILE, or with this machine for it.

    Changes nothing. Exit code 0: it can be run (there may be warnings); 2: it cannot.

    \b
    Examples:
      parties check /etc/parties/parties.toml
      parties check --no-machine parties.toml     on another machine than the one it is for
      parties check --json parties.toml | jq .problems
    """  # noqa: D301 - click reads \b as "leave these lines as they are"
    settings, problems = _examine(file, machine=not no_machine)
    bad = any(not problem.warning for problem in problems)
    if as_json:
        click.echo(json.dumps(_as_json(file, problems, ok=not bad)))
    elif settings is not None and not bad:
        for problem in problems:
            click.echo(f"{file}: {problem}", err=True)
        click.echo(f"{file}: good: {_summary(settings)}")
    else:
        click.echo(f"parties: {ConfigError(str(file), problems)}", err=True)
    return EXIT_MISTAKE if bad else EXIT_OK


def load_for(file: Path) -> Configuration:
    """A configuration that is good and fits this machine; warnings go to standard error. Raises ConfigError."""
    configuration = load(file)
    problems = check_machine(configuration)
    if any(not problem.warning for problem in problems):
        raise ConfigError(configuration.file, problems)
    for problem in problems:
        click.echo(f"parties: {file}: {problem}", err=True)
    return configuration


def _examine(file: Path, *, machine: bool) -> tuple[ControlSettings | None, Sequence[Problem]]:
    try:
        configuration = load(file)
    except ConfigError as error:
        return None, error.problems
    return configuration.settings, check_machine(configuration) if machine else ()


def _as_json(file: Path, problems: Sequence[Problem], *, ok: bool) -> dict[str, object]:
    listed = [
        {"path": problem.path, "line": problem.line, "message": problem.message, "warning": problem.warning} for problem in problems
    ]
    return {"version": 1, "file": str(file), "ok": ok, "problems": listed}


def _summary(settings: ControlSettings) -> str:
    managed = [resource for resource in _RESOURCES if getattr(settings.node, resource) is not None]
    services = ", ".join(service.name for service in settings.services)
    jobs = ", ".join(job.name for job in settings.best_effort) or "none"
    return f"services {services}; best-effort jobs {jobs}; manages {', '.join(managed) or 'nothing'}; policy {settings.policy}"
