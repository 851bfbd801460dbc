"""``parties check``."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from monitors.topology import TopologyError
from parties.commands.directories import CONFIGURATION
from parties.commands.errors import EXIT_MISTAKE, EXIT_OK
from parties.config import ConfigError, Configuration, Problem, load
from parties.config_machine import check_machine
from parties.doctor.model import Verdict
from parties.model import Resource
from parties.settings import ControlSettings

if TYPE_CHECKING:
    from parties.doctor.subject import Subject


@dataclass(frozen=True, slots=True)
class _Checked:
    """What became of a check: ``verdicts`` are the doctor's of what is asked for, empty where the machine was not looked at.

    ``homes`` is the domain that each service would live in after a fresh start, empty where there is one domain only.
    """

    problems: Sequence[Problem]
    settings: ControlSettings | None = None
    verdicts: Mapping[Resource, Verdict] = field(default_factory=dict)
    homes: Mapping[str, int] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        """Whether nothing is wrong but what a run does without."""
        return all(problem.warning for problem in self.problems)


@click.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("-c", "--config", "named", type=click.Path(path_type=Path), help="The same as FILE, as other commands name it.")
@click.option("--no-machine", is_flag=True, help="Look at the file alone, not at this machine.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(file: Path | None, named: Path | None, *, no_machine: bool, as_json: bool) -> int:
    """Say everything that is wrong with a configuration, or with this machine for it.

    FILE is /etc/parties/parties.toml unless given. A resource that it asks for and this machine cannot manage is a warning: the
    daemon runs with the others. Changes nothing. Exit code 0: it can be run (there may be warnings); 2: it cannot.

    \b
    Examples:
      parties check
      parties check --no-machine parties.toml     on another machine than the one it is for
      parties check --json parties.toml | jq .problems
    """  # noqa: D301 - click reads \b as "leave these lines as they are"
    if file is not None and named is not None:
        raise click.UsageError("one configuration at a time: give FILE or -c FILE")
    file = file or named or CONFIGURATION
    checked = _examine(file, machine=not no_machine)
    if as_json:
        click.echo(json.dumps(_as_json(file, checked)))
    elif checked.settings is not None and checked.good:
        for problem in checked.problems:
            click.echo(f"{file}: {problem}", err=True)
        click.echo(f"{file}: good: {_summary(checked.settings, checked)}")
    else:
        click.echo(f"parties: {ConfigError(str(file), checked.problems)}", err=True)
    return EXIT_OK if checked.good else EXIT_MISTAKE


def load_for(file: Path) -> Configuration:
    """A configuration that is good and fits this machine; the daemon tells by itself what it cannot manage. Raises ConfigError."""
    configuration = load(file)
    if problems := check_machine(configuration):
        raise ConfigError(configuration.file, problems)
    return configuration


def subject_of(settings: ControlSettings) -> Subject:
    """This machine, for these settings."""
    from parties.doctor.subject import Subject  # noqa: PLC0415 - parties run, which loads its file here, needs no doctor

    return Subject(given=settings)


def _examine(file: Path, *, machine: bool) -> _Checked:
    try:
        configuration = load(file)
    except ConfigError as error:
        return _Checked(error.problems)
    if not machine:
        return _Checked((), configuration.settings)
    from parties.doctor import asked  # noqa: PLC0415 - as in subject_of

    subject = subject_of(configuration.settings)
    mistakes = check_machine(configuration, subject.machine)
    found = asked.reports(subject)
    every = sorted([*mistakes, *asked.problems(configuration, found, mistakes)], key=lambda problem: problem.line or 0)
    verdicts = {resource: report.verdict for resource, report in found.items()}
    return _Checked(every, configuration.settings, verdicts, {} if mistakes else _homes(subject))


def _homes(subject: Subject) -> Mapping[str, int]:
    """Who would live where, if there is more than one domain; nothing where the machine's shape cannot be read."""
    with contextlib.suppress(TopologyError):
        return subject.homes if len(subject.domains) > 1 else {}
    return {}


def _as_json(file: Path, checked: _Checked) -> dict[str, object]:
    listed = [
        {"path": problem.path, "line": problem.line, "message": problem.message, "warning": problem.warning}
        for problem in checked.problems
    ]
    verdicts = {resource.value: verdict.value for resource, verdict in checked.verdicts.items()}
    body = {"version": 1, "file": str(file), "ok": checked.good, "problems": listed, "verdicts": verdicts}
    return {**body, "homes": dict(checked.homes)}


def _summary(settings: ControlSettings, checked: _Checked) -> str:
    asked = [resource for resource in Resource if getattr(settings.node, resource.value) is not None]
    managed = [resource.value for resource in asked if checked.verdicts.get(resource) is not Verdict.NOT_MANAGED]
    names = (service.name for service in settings.services)
    services = ", ".join(f"{name} (domain {checked.homes[name]})" if name in checked.homes else name for name in names)
    jobs = ", ".join(job.name for job in settings.best_effort) or "none"
    return f"services {services}; best-effort jobs {jobs}; manages {', '.join(managed) or 'nothing'}; policy {settings.policy}"
