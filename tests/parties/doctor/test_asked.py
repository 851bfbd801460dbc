"""``parties check`` says what of a configuration this machine will not manage, by the doctor's own verdict."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from parties import cli
from parties.commands import check as command
from parties.config import Configuration, Problem, parse
from parties.doctor import asked
from parties.doctor.model import Lack, Offer, ResourceReport, Verdict, Weight
from parties.doctor.report import examine
from parties.doctor.subject import Subject
from parties.model import Resource
from parties.settings import ControlSettings

SubjectOf = Callable[[str], Subject]
TEXT = "version = 1\n[node.cores]\n[node.cache]\n[node.frequency]\n"
SERVICE = '[[service]]\nname = "web"\ntarget = "10ms"\ncgroup = "/web"\n'


def _everything(subject: Subject) -> Configuration:
    """A configuration that asks for every resource, as far as it can be asked for."""
    disk, network = subject.disks(), subject.networks()
    node = '[node.cores]\n[node.cache]\n[node.frequency]\n[node.memory]\ntotal = "2GB"\n'
    node += f'[node.disk]\ndevice = "{disk[0]}"\n' if disk else ""
    node += f'[node.network]\ndevice = "{network[0]}"\nrate = "10Gbit/s"\n' if network else ""
    return _configuration(f"version = 1\n{node}")


def _configuration(text: str) -> Configuration:
    """A good configuration without its service: shapes have no groups of services, and what is judged here needs none."""
    configuration = parse(text + SERVICE)
    return dataclasses.replace(configuration, settings=dataclasses.replace(configuration.settings, services=()))


@pytest.mark.parametrize("name", ["xeon-v2", "xeon-v1", "epyc", "laptop", "virtual-machine"])
def test_left_alone_is_what_the_doctor_says_is(name: str, subject_of: SubjectOf) -> None:
    """On every shape exactly those have a warning that the doctor's report calls not managed, each at its table."""
    configuration = _everything(subject_of(name))
    subject = dataclasses.replace(subject_of(name), given=configuration.settings)
    found = asked.problems(configuration, asked.reports(subject), ())
    report = examine(subject)
    expected = [f"node.{one.resource}" for one in report.resources if one.asked and one.verdict is Verdict.NOT_MANAGED]
    assert [problem.path for problem in found] == expected
    assert [str(problem) for problem in found if not (problem.warning and problem.line)] == []


@pytest.mark.parametrize(
    ("lack", "known", "expected"),
    [
        (Lack("cache.not-managed", "no L3", "boot so", Weight.PREVENTS), False, ["cache will not be managed: no L3; boot so"]),
        (Lack("cache.not-managed", "boot so", "boot so", Weight.PREVENTS), True, ["cache will not be managed: boot so"]),
        (
            Lack("cache.not-managed", "L3 domain 3: full", "rmdir"),
            False,
            ["cache will not be managed everywhere: L3 domain 3: full; rmdir"],
        ),
        (Lack("cache.problem", "shared", "narrow"), False, []),
        (Lack("cache.cdp", "CDP", "mount", Weight.NOTE), False, []),
        (Lack("cache.unusable", "no group", "make it", Weight.PREVENTS), True, []),
        (Lack("cache.unusable", "no group", "make it", Weight.PREVENTS), False, ["no group; make it"]),
    ],
)
def test_what_is_told(lack: Lack, known: bool, expected: list[str]) -> None:  # noqa: FBT001 (a column of the table)
    """Left alone is a warning; what hinders the start is a mistake unless one is known; what is only degraded is the doctor's."""
    report = {Resource.CACHE: ResourceReport(Resource.CACHE, Offer(), (lack,))}
    found = asked.problems(_configuration("version = 1\n[node.cache]\n"), report, [Problem("", "x")] if known else [])
    assert [problem.message for problem in found] == expected
    assert all(problem.warning is not lack.id.endswith("unusable") for problem in found)


def test_one_reason_for_all_is_told_once(subject_of: SubjectOf) -> None:
    """Half a core under management hinders every actuator, and is one mistake."""
    configuration = _configuration('version = 1\n[node.cores]\nreserved = "0"\n[node.cache]\n[node.memory]\ntotal = "2GB"\n')
    found = asked.problems(
        configuration, asked.reports(dataclasses.replace(subject_of("laptop"), given=configuration.settings)), ()
    )
    assert [(problem.path, problem.warning) for problem in found] == [("node.cores", False)]


@pytest.fixture
def call(subject_of: SubjectOf, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Result]:
    """A check of ``TEXT`` on the shape of a virtual machine, which nothing else is wrong with."""
    file = tmp_path / "parties.toml"

    def on(*words: str) -> Result:
        file.write_text(TEXT)
        return CliRunner().invoke(cli.main, ["check", *words, str(file)])

    def subject(settings: ControlSettings) -> Subject:
        return dataclasses.replace(subject_of("virtual-machine"), given=settings)

    monkeypatch.setattr(command, "load", lambda file: _configuration(file.read_text()))
    monkeypatch.setattr(command, "subject_of", subject)
    monkeypatch.setattr(command, "check_machine", lambda *_: [])
    return on


def test_a_warning_is_no_mistake(call: Callable[..., Result]) -> None:
    """Exit code 0; what is left alone is on standard error with its line, and not among what is managed."""
    result = call()
    assert result.exit_code == 0
    lines = result.stderr.splitlines()
    assert [line.partition(": ")[2][:60] for line in lines] == [
        "warning, line 3, node.cache: cache will not be managed: no c",
        "warning, line 4, node.frequency: frequency will not be manag",
    ]
    assert "; manages cores; " in result.stdout


def test_json_has_the_verdicts(call: Callable[..., Result]) -> None:
    """Scripts find the warnings and each verdict; without the machine there is none."""
    said = json.loads(call("--json").stdout)
    assert said["ok"] is True
    assert [(one["path"], one["warning"]) for one in said["problems"]] == [("node.cache", True), ("node.frequency", True)]
    assert said["verdicts"] == {"cores": "managed", "cache": "not managed", "frequency": "not managed"}
    said = json.loads(call("--json", "--no-machine").stdout)
    assert (said["problems"], said["verdicts"]) == ([], {})


def test_warnings_are_not_counted_as_mistakes(call: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    """With a mistake beside them the whole is exit code 2, in the order of the file, each counted as what it is."""
    monkeypatch.setattr(command, "check_machine", lambda *_: [Problem("node.cores", "CPU 9 is not online", 2)])
    result = call()
    assert result.exit_code == 2
    assert result.stdout == ""
    first, second, *_ = result.stderr.splitlines()
    assert first.endswith("parties.toml: 1 mistake and 2 warnings")
    assert second == "  line 2, node.cores: CPU 9 is not online"
