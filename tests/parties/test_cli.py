"""The command line: quick, helpful, and with one message and an exit code for whatever goes wrong."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from parties import __version__, cli
from parties.commands import errors
from parties.commands.errors import explain
from parties.config import ConfigError, Problem
from parties.journal import JOURNAL_NAME, Journal
from parties.knob import KnobError, KnobRef
from parties.lock import RuntimeLock

ROOT = Path(__file__).parents[2]
EXAMPLE = str(ROOT / "configs/two-cores.toml")


def call(*words: str) -> Result:
    """A call of ``parties`` within this process."""
    return CliRunner().invoke(cli.main, list(words))


def test_version() -> None:
    """The version is printed by itself, for scripts."""
    result = call("--version")
    assert (result.exit_code, result.output) == (0, f"parties {__version__}\n")


def test_version_imports_little() -> None:
    """Asking for the version loads neither pydantic nor rich nor any subcommand: that is what keeps it quick."""
    code = "import sys; from parties.cli import main\ntry: main(['--version'])\nexcept SystemExit: print(*sorted(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    loaded = set(out.split())
    assert "click" in loaded
    assert not loaded & {
        "pydantic",
        "rich",
        "psutil",
        "parties.config",
        "parties.commands.run",
        "parties.commands.check",
    }


def test_restore_imports_little() -> None:
    """After a crash the restore does not depend on the configuration's libraries."""
    code = "import sys, parties.commands.restore; print(*sorted(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not set(out.split()) & {"pydantic", "rich", "psutil", "parties.config"}


@pytest.mark.parametrize("words", [["-h"], ["--help"], []])
def test_help_lists_every_command_and_the_exit_codes(words: list[str]) -> None:
    """The help names each subcommand with what it does, and what the exit codes mean."""
    result = call(*words)
    for name, built_in in cli.BUILT_IN.items():
        assert name in result.output
        assert built_in.summary.split()[0] in result.output
    assert "Exit codes: 0 all right, 1 failed at run time, 2 a mistake" in " ".join(result.output.split())


@pytest.mark.parametrize("name", sorted(cli.BUILT_IN))
def test_every_command_helps(name: str) -> None:
    """Each subcommand loads, takes -h, and shows an example; its line in the list is its own."""
    result = call(name, "-h")
    assert result.exit_code == 0
    assert "Examples:" in result.output
    assert f"  parties {name}" in result.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rnu"], "Error: there is no command 'rnu'; did you mean 'run'?"),
        (["xyzzy"], f"Error: there is no command 'xyzzy'; known: {', '.join(cli.BUILT_IN)}"),
        (["check", "a.toml", "-c", "b.toml"], "Error: one configuration at a time: give FILE or -c FILE"),
        (["completion", "tcsh"], "Error: Invalid value for '{bash|zsh|fish}': 'tcsh' is not one of 'bash', 'zsh', 'fish'."),
        (
            ["run", "--duration", "60"],
            'Error: Invalid value for \'--duration\': "60" has no unit; say "500ms" (accepted units: ns, us, µs, ms, s, min, h)',
        ),
    ],
)
def test_explains_bad_calls(words: list[str], message: str) -> None:
    """A wrong call ends with its mistake and exit code 2."""
    result = call(*words)
    assert result.exit_code == 2
    assert result.output.splitlines()[-1] == message or message in " ".join(result.output.split())


class FakeDistribution:
    """A package that offers a command."""

    name = "their-package"


class FakeEntryPoint(metadata.EntryPoint):
    """An entry point that loads what the test says."""

    dist = FakeDistribution()  # type: ignore[assignment]


@pytest.fixture
def plug_ins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A package with a good command, a broken one, one that is no command, and one that takes a name of ours."""
    (tmp_path / "their_module.py").write_text(
        "import click\n@click.command()\ndef good():\n    '''Do good.'''\n    click.echo('well done')\n    return 3\nnothing = 1\n"
    )
    (tmp_path / "their_broken.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    places = {
        "good": "their_module:good",
        "broken": "their_broken:x",
        "nothing": "their_module:nothing",
        "run": "their_module:good",
    }
    found = [FakeEntryPoint(name, place, cli.ENTRY_POINT_GROUP) for name, place in places.items()]
    monkeypatch.setattr(metadata, "entry_points", lambda group: found if group == "parties.commands" else [])


@pytest.mark.usefixtures("plug_ins")
def test_other_packages_add_commands() -> None:
    """A command from an entry point is listed, runs, and its exit code is ours; it cannot take the place of one of ours."""
    help_text = call("--help").output
    assert "Do good." in help_text
    assert "(cannot be loaded; call it to see why)" in help_text
    result = call("good")
    assert (result.exit_code, result.output) == (3, "well done\n")
    assert "Run the controller" in call("run", "-h").output


@pytest.mark.usefixtures("plug_ins")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "broken",
            (
                "parties: the command 'broken' of the package 'their-package' cannot be loaded: ModuleNotFoundError: "
                "No module named 'no_such_library'; install what it needs, or remove the package\n"
            ),
        ),
        (
            "nothing",
            (
                "parties: the command 'nothing' of the package 'their-package' is no command: their_module:nothing; "
                "mend or remove the package\n"
            ),
        ),
    ],
)
def test_a_broken_plug_in_is_one_message(name: str, message: str) -> None:
    """What another package got wrong is said in one line that names it."""
    result = call(name)
    assert (result.exit_code, result.output) == (1, message)


def _known_errors(tmp_path: Path) -> list[tuple[Exception, int, str]]:
    return [
        (ConfigError("p.toml", [Problem("seed", "bad", 3)]), 2, "parties: p.toml: line 3, seed: bad\n"),
        (KnobError(errno.EINVAL, "cpu.max of /web: 10: Invalid argument"), 1, "cpu.max of /web: 10: Invalid argument"),
        (
            PermissionError(errno.EACCES, "Permission denied", str(tmp_path)),
            2,
            f"parties: {tmp_path}: Permission denied; run parties as root, for example with sudo\n",
        ),
        (OSError(errno.ENOSPC, "No space left on device", "/x/y"), 1, "parties: /x/y: No space left on device\n"),
    ]


@pytest.mark.parametrize("index", range(4))
def test_known_errors_are_their_text(tmp_path: Path, capsys: pytest.CaptureFixture[str], index: int) -> None:
    """Errors that parts of the program raise for the operator are one message with the right exit code."""
    error, code, message = _known_errors(tmp_path)[index]
    assert explain(error, directory=tmp_path) == code
    shown = capsys.readouterr().err
    assert message in shown
    assert len(shown.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_unknown_errors_are_written_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A defect is one line on the terminal, and its traceback in a file that the line names."""
    with pytest.raises(ZeroDivisionError) as caught:
        _ = 1 // int("0")
    error = caught.value
    assert explain(error, directory=tmp_path) == 1
    (details,) = tmp_path.iterdir()
    assert (
        capsys.readouterr().err
        == f"parties: unexpected error: ZeroDivisionError: integer division or modulo by zero; details: {details}\n"
    )
    assert "Traceback" in details.read_text()
    assert explain(error, debug=True, directory=tmp_path) == 1
    assert "Traceback" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [details]


def test_details_go_where_there_is_room(tmp_path: Path) -> None:
    """Where the state directory cannot be written, the temporary one is taken."""
    name = errors.write_details("what happened", tmp_path / "missing")
    assert Path(name).read_text() == "what happened"
    Path(name).unlink()


def test_errors_inside_commands_get_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An exception in any subcommand comes out as a message, Ctrl-C as code 130."""
    raised: list[BaseException] = [ConfigError("f", [Problem("", "bad")]), KeyboardInterrupt(), click.Abort()]

    def failing() -> None:
        raise raised.pop(0)

    monkeypatch.setattr(cli, "_plug_ins", lambda: {"fail": "anything"})
    monkeypatch.setattr(cli, "_load", lambda _: click.Command("fail", callback=failing))
    results = [call("fail") for _ in range(3)]
    assert [result.exit_code for result in results] == [2, 130, 130]
    assert [result.output.lstrip("\n") for result in results] == [
        "parties: f: bad\n",
        "parties: interrupted\n",
        "parties: interrupted\n",
    ]


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    """``parties check | head`` ends in silence."""
    command = f"{sys.executable} -c 'from parties.cli import main; main()' check --json --no-machine {EXAMPLE}"
    result = subprocess.run(["bash", "-c", f"{command} > >(exec 0<&-; sleep 1)"], capture_output=True, text=True, check=False)
    assert "Traceback" not in result.stderr
    assert "Exception ignored" not in result.stderr


def test_check_says_what_a_good_file_is() -> None:
    """A good file is summed up in one line."""
    result = call("check", "--no-machine", EXAMPLE)
    expected = "good: services memcached, nginx; best-effort jobs stress; manages cores, memory; policy parties"
    assert (result.exit_code, result.output) == (0, f"{EXAMPLE}: {expected}\n")


def test_check_names_every_mistake(tmp_path: Path) -> None:
    """A bad file is refused with all its mistakes in one message, as text and as JSON."""
    file = tmp_path / "bad.toml"
    file.write_text(
        'version = 1\nintervall = "1s"\n[node.memory]\ntotal = 8\n[[service]]\nname = "a"\ntarget = "1ms"\ncgroup = "/a"\n'
    )
    result = call("check", str(file))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == (
        f"parties: {file}: 2 mistakes\n"
        "  line 2, intervall: unknown key; did you mean 'interval'?\n"
        '  line 4, node.memory.total: 8 has no unit; say "1GiB" (accepted units: B, kB, MB, GB, TB, KiB, MiB, GiB, TiB)\n'
    )
    result = call("check", "--json", str(file))
    assert result.exit_code == 2
    found = json.loads(result.stdout)
    assert (found["version"], found["ok"], found["file"]) == (1, False, str(file))
    assert [(problem["path"], problem["line"], problem["warning"]) for problem in found["problems"]] == [
        ("intervall", 2, False),
        ("node.memory.total", 4, False),
    ]


def test_check_compares_with_the_machine() -> None:
    """Control groups that do not exist are named, unless the machine is left out."""
    result = call("check", EXAMPLE)
    assert result.exit_code == 2
    assert "/parties-example/memcached" in result.stderr or "only root" in result.stderr
    assert call("check", "--no-machine", "--json", EXAMPLE).exit_code == 0


@pytest.mark.parametrize("words", [("/nowhere/p.toml",), ("-c", "/nowhere/p.toml"), ()])
def test_check_of_no_file(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is not there is one line, however it was named; the one of ``parties run`` where none was."""
    monkeypatch.setattr("parties.commands.check.CONFIGURATION", Path("/nowhere/p.toml"))
    result = call("check", *words)
    assert (result.exit_code, result.stderr) == (
        2,
        "parties: /nowhere/p.toml: cannot be read: No such file or directory; say where it is with -c FILE\n",
    )


def test_run_refuses_what_check_refuses(tmp_path: Path) -> None:
    """A run of a bad file ends before anything is started, with the same message."""
    file = tmp_path / "bad.toml"
    file.write_text("version = 3\n")
    assert call("run", "-c", str(file)).stderr == (
        f"parties: {file}: line 1, version: 3 is not known to parties {__version__}, which reads version 1\n"
    )


def test_restore_of_nothing(tmp_path: Path) -> None:
    """Without a journal there is nothing to do, and that is a success."""
    words = ["restore", "--state-directory", str(tmp_path), "--runtime-directory", str(tmp_path / "run")]
    result = call(*words)
    assert (result.exit_code, result.output) == (0, f"{tmp_path / JOURNAL_NAME}: there was nothing to put back\n")
    assert json.loads(call(*words, "--json").stdout) == {
        "version": 1,
        "journal": str(tmp_path / JOURNAL_NAME),
        "dry_run": False,
        "complete": True,
        "other_topology": False,
        "entries": [],
        "corrupt": [],
        "set_aside": None,
        "left_for_restart": False,
    }


def test_restore_says_what_it_did(tmp_path: Path) -> None:
    """Entries that cannot be put back are named with the reason, and make the exit code 1."""
    journal = Journal(tmp_path, started_unix_ns=1)
    journal.save([(KnobRef("no-such-kind", ("/a",)), "50000")])
    journal.close()
    words = ["restore", "--state-directory", str(tmp_path), "--runtime-directory", str(tmp_path / "run")]
    result = call(*words, "--dry-run")
    assert result.exit_code == 1
    assert result.stderr.startswith("NOT put back: no-such-kind:/a = 50000: ")
    assert result.stdout == f"{tmp_path / JOURNAL_NAME}: dry run, nothing was written; 1 NOT put back\n"
    (entry,) = json.loads(call(*words, "--json").stdout)["entries"]
    assert (entry["kind"], entry["address"], entry["old"], entry["fate"]) == ("no-such-kind", ["/a"], "50000", "failed")


def test_restore_leaves_a_running_daemon_alone(tmp_path: Path) -> None:
    """While a daemon has the lock, nothing is undone under it."""
    with RuntimeLock(tmp_path):
        code = "from parties.cli import main; main()"
        words = ["restore", "--state-directory", str(tmp_path), "--runtime-directory", str(tmp_path)]
        result = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr.startswith(f"parties: {tmp_path}/lock: held by process ")
    assert "puts everything back by itself when it is stopped" in result.stderr
    assert result.stderr.endswith(f"run: parties verify --state-directory {tmp_path} --runtime-directory {tmp_path}\n")
    assert len(result.stderr.splitlines()) == 1


def test_restore_takes_directories_from_the_configuration(tmp_path: Path) -> None:
    """With -c, the journal is looked for where the configuration says."""
    file = tmp_path / "p.toml"
    text = Path(EXAMPLE).read_text()
    file.write_text(text.replace("/run/parties", f"{tmp_path}/run").replace("/var/lib/parties", f"{tmp_path}/state"))
    assert call("restore", "-c", str(file)).output == f"{tmp_path}/state/{JOURNAL_NAME}: there was nothing to put back\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    """Each shell gets a script that asks us for completions."""
    result = call("completion", shell)
    assert result.exit_code == 0
    assert "_PARTIES_COMPLETE" in result.output


def test_completion_answers() -> None:
    """What the script asks is answered with the subcommands."""
    environment = {"_PARTIES_COMPLETE": "bash_complete", "COMP_WORDS": "parties res", "COMP_CWORD": "1", "PATH": "/usr/bin:/bin"}
    code = "from parties.cli import main; main()"
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert result.stdout == "plain,restore\n"


def test_conformance_judges_a_client() -> None:
    """A client that sends nothing does not conform; one that cannot be started is a mistake."""
    code = "from parties.cli import main; main()"
    words = [sys.executable, "-c", code, "conformance", "--duration", "200ms", "--", "true"]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "does not conform" in result.stdout
    words[-1] = "/nowhere/client"
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (
        2,
        "parties: cannot run /nowhere/client: No such file or directory; name a program that can be run\n",
    )
