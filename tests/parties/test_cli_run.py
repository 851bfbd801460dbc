"""``parties run`` starts, follows, stops and cleans up after its control process, whatever that does."""

from __future__ import annotations

import dataclasses
import fcntl
import functools
import json
import os
import pty
import selectors
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from waiting import LIMIT_S

from parties import cli
from parties.codec import from_json
from parties.commands import run as run_module
from parties.commands.control_process import Ending, Launch, follow
from parties.commands.errors import MistakeError, RunFailedError
from parties.config import load
from parties.journal import JournalError
from parties.lock import RuntimeLock
from parties.settings import ControlSettings
from parties.signals import HEEDED

ROOT = Path(__file__).parents[2]
MS = 1_000_000

FAKE_CONTROL = """\
import json, os, signal, socket, sys, time

mode, settings_fd, front_fd = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
front = socket.socket(fileno=front_fd)
settings = json.load(os.fdopen(settings_fd))

def tell(**message):
    front.send(json.dumps(message).encode())

def tick(number):
    service = {"state": "ok", "latency_ns": 8000000, "target_ns": 10000000, "slack": 0.2, "load_rps": 100, "unsent": 0,
               "amounts": {"cores": 500}, "usage": {}}
    tell(type="tick", tick=number, reason="hold-targets-met", subject=None, moves=[], outcomes=[], services={"web": service},
         best_effort={"amounts": {}, "usage": {}}, idle={"amounts": {"cores": 500}}, lateness_ns=0, missed=0, tick_cpu_ns=0)

stopped = left = False
def stop(number, _):
    global stopped, left
    stopped, left = True, number == signal.SIGUSR1
signal.signal(signal.SIGTERM, signal.SIG_IGN if mode == "hang" else stop)
signal.signal(signal.SIGUSR1, stop)
signal.pthread_sigmask(signal.SIG_SETMASK, ())
if "--hand-back" in sys.argv and mode == "no-second":
    print("parties: it cannot begin", file=sys.stderr)
    sys.exit(2)

if mode == "mistake":
    print("parties: /run/x/lock: held by process 7; stop it", file=sys.stderr)
    sys.exit(2)
if mode == "failure":
    print("parties: cpu.max of /web: Invalid argument", file=sys.stderr)
    sys.exit(1)
tell(type="started", policy="parties", record=settings["record"] or "new", interval_ns=settings["interval_ns"])
tell(type="event", level="info",
     text=f"pid {os.getpid()} {sys.argv[4:]} target {settings['services'][0]['target_ns']} session {os.getsid(0) == os.getpid()}")
number = 0
while not stopped:
    number += 1
    if mode != "quiet" or number == 1:
        tick(number)
    if number == 3 and mode == "traceback":
        raise RuntimeError("a defect")
    if number == 3 and mode == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02)
    front.setblocking(False)
    try:
        if front.recv(1) == b"":
            open(os.path.join(settings["state_directory"], "front-gone"), "w").close()
            sys.exit(0)
    except BlockingIOError:
        pass
    front.setblocking(True)
tell(type="stopped", report={"ticks": number, "missed_ticks": 0, "moves": {"cores": 2}, "reverts": 1, "refused": 0,
                             "cpu_fraction_of_core": 0.0012, "rss_mb": 31.5, "left_in_force": left})
if mode == "closes-early":
    front.close()
    time.sleep(0.3)
"""


@pytest.fixture
def fake(tmp_path: Path) -> Callable[[str], Launch]:
    """A way to start a control process that behaves as told."""
    script = tmp_path / "fake_control.py"
    script.write_text(FAKE_CONTROL)
    return lambda mode: Launch(
        argv=lambda settings_fd, front_fd: [sys.executable, str(script), mode, str(settings_fd), str(front_fd)],
        limit_ns=(1000 if mode == "hang" else 120_000) * MS,
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A configuration whose directories are the test's."""
    text = (ROOT / "configs/two-cores.toml").read_text()
    file = tmp_path / "parties.toml"
    file.write_text(text.replace("/run/parties", f"{tmp_path}/run").replace("/var/lib/parties", str(tmp_path)))
    return file


@pytest.fixture
def call(fake: Callable[[str], Launch], file: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """``parties run`` with such a control process, without a look at the machine."""

    def called(mode: str, *words: str) -> Result:
        launch = fake(mode)
        monkeypatch.setattr(run_module, "Launch", functools.partial(Launch, argv=launch.argv, limit_ns=launch.limit_ns))
        monkeypatch.setattr(run_module, "load_for", load)
        return CliRunner().invoke(cli.main, ["run", "-c", str(file), *words])

    return called


def test_runs_for_a_duration(call: Callable[..., Result]) -> None:
    """Plain lines tell of the start, events and services; after the duration the run is stopped in order and summed up."""
    result = call("good", "--duration", "300ms")
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert lines[0] == "started: policy parties, record new"
    assert lines[1].startswith("info: pid ")
    assert lines[1].endswith("session True")
    assert lines[2] == "tick 1: web ok 8ms/10ms slack +0.20 100/s (hold-targets-met)"
    assert lines[-1].startswith("stopped: ")
    assert lines[-1].endswith(
        " 0 missed; moves: 2 of cores; reverts: 1; refused: 0; controller: 0.12 % of a core, 31.5 MB; everything was put back"
    )


def test_json_is_every_message(call: Callable[..., Result], tmp_path: Path) -> None:
    """With --json each line is one message, from the start to the report; --record reaches the control process."""
    result = call("good", "--duration", "200ms", "--json", "--record", str(tmp_path / "r.jsonl"))
    messages = [json.loads(line) for line in result.stdout.splitlines()]
    assert [message["type"] for message in (*messages[:2], messages[-1])] == ["started", "event", "stopped"]
    assert {message["type"] for message in messages[2:-1]} == {"tick"}
    assert len(messages) > 4
    assert messages[0]["record"] == str(tmp_path / "r.jsonl")


def test_settings_arrive_whole(file: Path, tmp_path: Path) -> None:
    """What the control process reads is what the configuration says."""
    code = f"import sys; open({str(tmp_path / 'seen')!r}, 'wb').write(open(int(sys.argv[1]), 'rb').read())"
    settings = load(file).settings
    follow(settings, lambda _: None, launch=Launch(argv=lambda fd, _: [sys.executable, "-c", code, str(fd)]))
    assert from_json(ControlSettings, json.loads((tmp_path / "seen").read_text())) == settings


def test_waits_for_the_exit_after_the_last_word(call: Callable[..., Result]) -> None:
    """A control process that has said goodbye is waited for, and its exit code counts."""
    assert call("closes-early", "--duration", "100ms").exit_code == 0


def test_an_operators_mistake_is_passed_on(call: Callable[..., Result], tmp_path: Path) -> None:
    """What the control process refuses to begin with is its message and exit code 2, and nothing is undone under another daemon."""
    with RuntimeLock(tmp_path / "run"):
        result = call("mistake")
    assert (result.exit_code, result.stderr) == (2, "parties: /run/x/lock: held by process 7; stop it\n")


def test_a_failure_is_one_message(call: Callable[..., Result]) -> None:
    """A control process that failed in order: its message, what became of the values, exit code 1."""
    result = call("failure")
    assert (result.exit_code, result.stderr) == (1, "parties: cpu.max of /web: Invalid argument; there was nothing to put back\n")


def test_a_killed_control_process_is_cleaned_up_after(call: Callable[..., Result]) -> None:
    """After SIGKILL the front restores by itself and says so in one message."""
    result = call("killed")
    assert (result.exit_code, result.stderr) == (
        1,
        "parties: the control process was killed by SIGKILL; there was nothing to put back\n",
    )


def test_a_defect_is_one_message_and_a_file(call: Callable[..., Result], tmp_path: Path) -> None:
    """A traceback of the control process goes to a file beside the journal; the message names it."""
    result = call("traceback")
    (details,) = tmp_path.glob("parties-error-*.log")
    assert "Traceback" in details.read_text()
    assert (result.exit_code, result.stderr) == (
        1,
        f"parties: the control process failed: RuntimeError: a defect (details: {details}); there was nothing to put back\n",
    )


def test_a_control_process_that_does_not_end(fake: Callable[[str], Launch], file: Path) -> None:
    """One that does not put things back in time is left alone, and the message says what to do."""
    settings = load(file).settings
    ending = follow(settings, lambda _: None, duration_ns=100 * MS, launch=fake("hang"))
    try:
        assert ending.exit_code is None
        with pytest.raises(RunFailedError) as caught:
            run_module.concluded(ending, settings, file)
        assert caught.value.message == (
            f"the control process ({ending.pid}) has not put everything back in time; when it has ended, or once you have ended it "
            f"(kill -9 {ending.pid}), run: parties restore -c {file}"
        )
    finally:
        os.kill(ending.pid, signal.SIGKILL)


def test_a_restore_that_fails_says_what_to_do(file: Path) -> None:
    """If the front cannot restore either, the message says why and what to call."""

    def failing(_: ControlSettings) -> str:
        raise JournalError("/s/journal: damaged")

    with pytest.raises(RunFailedError) as caught:
        run_module.concluded(Ending(7, -11), load(file).settings, file, put_back=failing)
    assert caught.value.message == (
        "the control process was killed by SIGSEGV; what it had changed could not be put back: /s/journal: damaged; "
        f"then run: parties restore -c {file}"
    )


def test_a_mistake_without_words(file: Path) -> None:
    """Even a silent refusal is a message."""
    with pytest.raises(MistakeError, match="did not say why"):
        run_module.concluded(Ending(7, 2), load(file).settings, file)


def test_a_view_that_fails_stops_the_run(fake: Callable[[str], Launch], file: Path, tmp_path: Path) -> None:
    """If nobody can be shown anything any more, the control process is stopped in order before the error goes on."""
    pids: list[int] = []

    def failing(message: dict[str, object]) -> None:
        if message["type"] == "event":
            pids.append(int(str(message["text"]).split()[1]))
        if message["type"] == "tick":
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        follow(load(file).settings, failing, launch=fake("good"))
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)
    assert not (tmp_path / "front-gone").exists()


DRIVER = """\
import functools, sys
from parties import cli
from parties.commands import run
from parties.commands.control_process import Launch
from parties.config import load

script, mode = sys.argv[1:3]
argv = lambda settings_fd, front_fd: [sys.executable, script, mode, str(settings_fd), str(front_fd)]
run.Launch = functools.partial(Launch, argv=argv)
run.load_for = load
cli.main(sys.argv[3:])
"""


class Front:
    """``parties run`` as a process of its own."""

    def __init__(self, script: Path, file: Path, *words: str, mode: str = "good") -> None:
        command = [sys.executable, "-c", DRIVER, str(script), mode, "run", "-c", str(file), "--no-live", *words]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.control_pid = 0

    def wait_for_start(self) -> None:
        """Until the first tick."""
        self.wait_for("tick 1")

    def wait_for(self, words: str) -> str:
        """What it says up to the line with these words."""
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if line.startswith("info: pid "):
                self.control_pid = int(line.split()[2])
            if words in line:
                return "".join(lines)
        raise AssertionError(self.process.communicate()[1])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_signals_stop_in_order(
    fake: Callable[[str], Launch], file: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """Ctrl-C and SIGTERM reach the control process as SIGTERM, its report is shown, and the exit code tells which it was."""
    fake("good")
    front = Front(tmp_path / "fake_control.py", file)
    front.wait_for_start()
    front.process.send_signal(number)
    out, err = front.process.communicate(timeout=LIMIT_S)
    assert (front.process.returncode, err) == (code, "")
    assert "everything was put back" in out
    with pytest.raises(ProcessLookupError):
        os.kill(front.control_pid, 0)


def test_a_hangup_signal_reloads(fake: Callable[[str], Launch], file: Path, tmp_path: Path) -> None:
    """The first control process leaves, a second one has the new target and may hand back; a stop then ends it in order."""
    fake("good")
    front = Front(tmp_path / "fake_control.py", file)
    first = front.wait_for(" [] target 15000000")
    text = file.read_text()
    file.write_text(text.replace('target = "15ms"', 'target = "99ms"', 1))
    front.process.send_signal(signal.SIGHUP)
    second = front.wait_for("['--hand-back'] target 99000000")
    assert [line for line in (first + second).splitlines() if line.startswith(("started", "info: reloading", "error"))] == [
        "started: policy parties, record new",
        f"info: reloading {file}",
        "started: policy parties, record new",
    ]
    front.process.terminate()
    out, err = front.process.communicate(timeout=LIMIT_S)
    assert (front.process.returncode, err) == (0, "")
    assert "everything was put back" in out


def test_a_reload_with_a_mistake_keeps_the_control_process(fake: Callable[[str], Launch], file: Path, tmp_path: Path) -> None:
    """Every mistake of the file is told, nobody is stopped, and the exit code tells nothing of it."""
    fake("good")
    front = Front(tmp_path / "fake_control.py", file)
    front.wait_for("tick 1")
    file.write_text(file.read_text().replace('target = "15ms"', 'target = "soon"'))
    front.process.send_signal(signal.SIGHUP)
    told = front.wait_for("error: reload refused, the earlier configuration stays in force: ")
    assert "target" in told.splitlines()[-1] + front.wait_for("target")
    os.kill(front.control_pid, 0)
    front.process.terminate()
    assert front.process.communicate(timeout=LIMIT_S)
    assert front.process.returncode == 0


def test_a_reload_that_cannot_begin_goes_back(fake: Callable[[str], Launch], file: Path, tmp_path: Path) -> None:
    """The second control process refuses: a third one has the earlier settings, and may not hand back."""
    fake("good")
    front = Front(tmp_path / "fake_control.py", file, mode="no-second")
    front.wait_for("tick 1")
    file.write_text(file.read_text().replace('target = "15ms"', 'target = "99ms"', 1))
    front.process.send_signal(signal.SIGHUP)
    front.wait_for("error: reload failed, the earlier configuration is in force again: parties: it cannot begin")
    front.wait_for(" [] target 15000000")
    front.process.terminate()
    front.process.communicate(timeout=LIMIT_S)
    assert front.process.returncode == 0


def test_values_can_be_left_for_the_next_run(fake: Callable[[str], Launch], file: Path, tmp_path: Path) -> None:
    """SIGUSR1 is passed on, the exit code is 0, and the last line says what became of the values."""
    fake("good")
    front = Front(tmp_path / "fake_control.py", file)
    front.wait_for("tick 1")
    front.process.send_signal(signal.SIGUSR1)
    out, err = front.process.communicate(timeout=LIMIT_S)
    assert (front.process.returncode, err) == (0, "")
    assert "everything was left in force for the next run" in out


def test_a_stop_that_is_half_of_a_restart_leaves_everything_in_force(fake: Callable[[str], Launch], file: Path) -> None:
    """SIGTERM with a restart queued reaches the control process as a wish to leave; without one as a stop."""
    settings = load(file).settings
    for restarting in (True, False):
        launch = dataclasses.replace(fake("good"), restarting=lambda restarting=restarting: restarting)  # type: ignore[misc]

        def stop_at_once(message: dict[str, object]) -> None:
            if message["type"] == "tick" and message["tick"] == 1:
                os.kill(os.getpid(), signal.SIGTERM)

        ending = follow(settings, stop_at_once, launch=launch)
        assert (ending.exit_code, ending.left, ending.orphaned) == (0, restarting, False)


def test_values_that_were_left_for_a_reload_that_was_overtaken_by_a_stop_are_put_back(
    fake: Callable[[str], Launch], file: Path
) -> None:
    """The stop comes when the control process has left already: nobody follows, so the front puts everything back."""
    settings = load(file).settings
    done: list[str] = []

    def show(message: dict[str, object]) -> None:
        if message["type"] == "tick" and message["tick"] == 1:
            os.kill(os.getpid(), signal.SIGHUP)
        if message["type"] == "stopped":
            os.kill(os.getpid(), signal.SIGTERM)

    ending = follow(settings, show, launch=fake("good"), reload=lambda: settings)
    assert (ending.left, ending.orphaned) == (True, True)

    def put_back(_: ControlSettings) -> str:
        done.append("put back")
        return ""

    assert run_module.concluded(ending, settings, file, put_back=put_back) == 0
    assert done == ["put back"]


@pytest.mark.parametrize(
    ("first", "then", "restarting", "left", "orphaned"),
    [
        pytest.param(signal.SIGHUP, signal.SIGUSR1, False, True, False, id="a-reload-and-a-leave"),
        pytest.param(signal.SIGHUP, signal.SIGTERM, True, True, False, id="a-reload-and-a-restart"),
        pytest.param(signal.SIGUSR1, signal.SIGTERM, False, True, True, id="a-leave-and-a-stop"),
        pytest.param(signal.SIGUSR1, signal.SIGTERM, True, True, False, id="a-leave-and-a-restart"),
        pytest.param(signal.SIGTERM, signal.SIGUSR1, False, False, False, id="a-stop-and-a-leave"),
    ],
)
def test_of_two_wishes_the_greater_one_counts_also_when_the_control_process_has_left(  # noqa: PLR0913 - a table
    fake: Callable[[str], Launch], file: Path, first: int, then: int, *, restarting: bool, left: bool, orphaned: bool
) -> None:
    """The second comes with the control process's last word: what it left stays for who wanted that, and for nobody else."""
    settings = load(file).settings

    def show(message: dict[str, object]) -> None:
        if message["type"] == "tick" and message["tick"] == 1:
            os.kill(os.getpid(), first)
        if message["type"] == "stopped":
            os.kill(os.getpid(), then)

    launch = dataclasses.replace(fake("good"), restarting=lambda: restarting)
    ending = follow(settings, show, launch=launch, reload=lambda: settings)
    assert (ending.exit_code, ending.left, ending.orphaned) == (0, left, orphaned)


def test_a_control_process_begins_with_signals_held_back_and_the_front_without(file: Path, tmp_path: Path) -> None:
    """No signal can end it before it listens; the front's own mask, and what else it starts, is as before."""
    seen = tmp_path / "mask"
    code = f"import pathlib, signal; pathlib.Path({str(seen)!r}).write_text(str(sorted(signal.pthread_sigmask(0, ()))))"
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    follow(load(file).settings, lambda _: None, launch=Launch(argv=lambda *_: [sys.executable, "-c", code]))
    assert seen.read_text() == str(sorted(HEEDED))
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_a_values_end_that_cannot_be_put_back_is_a_message(file: Path) -> None:
    """What was left for nobody and cannot be put back: what to do is said."""

    def failing(_: ControlSettings) -> str:
        raise JournalError("/s/journal: damaged")

    with pytest.raises(
        RunFailedError, match="what was left in force could not be put back: /s/journal: damaged; then run: parties"
    ):
        run_module.concluded(Ending(7, 0, left=True, orphaned=True), load(file).settings, file, put_back=failing)


def test_the_watchdogs_signal_kills_what_hangs(fake: Callable[[str], Launch], file: Path) -> None:
    """SIGABRT: the control process is killed, and the message says why."""
    settings = load(file).settings

    def show(message: dict[str, object]) -> None:
        if message["type"] == "tick" and message["tick"] == 1:
            os.kill(os.getpid(), signal.SIGABRT)

    ending = follow(settings, show, launch=fake("hang"))
    assert (ending.exit_code, ending.hung) == (-signal.SIGKILL, True)
    with pytest.raises(RunFailedError, match=r"the control process hung, .* killed; done$"):
        run_module.concluded(ending, settings, file, put_back=lambda _: "done")


def test_a_terminal_that_is_closed_is_a_stop_and_no_reload(fake: Callable[[str], Launch], file: Path, tmp_path: Path) -> None:
    """The hangup of our own terminal ends the run in order, as it always did."""
    fake("good")
    leader, terminal = pty.openpty()
    report = tmp_path / "report"
    command = [sys.executable, "-c", DRIVER, str(tmp_path / "fake_control.py"), "good", "run", "-c", str(file), "--no-live"]
    with report.open("w") as out:
        process = subprocess.Popen(
            command,
            stdin=terminal,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_control_terminal,  # noqa: PLW1509 - the tests have no threads
        )
    os.close(terminal)
    while "tick 1" not in report.read_text():
        assert process.poll() is None
        time.sleep(0.02)
    os.close(leader)
    assert process.wait(LIMIT_S) == 0
    assert "everything was put back" in report.read_text()


def _control_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_a_shadow_is_told_so_and_reports_what_it_would_have_done(call: Callable[..., Result], tmp_path: Path) -> None:
    """The words reach the control process, and the directories are the given ones."""
    result = call("good", "--duration", "100ms", "--shadow", "--runtime-directory", str(tmp_path / "other"))
    assert "['--shadow'] target 15000000" in result.stdout
    would_have = {
        **{f"moves_by_{name}": {"cores": 2} for name in ("resource", "reason", "giver", "taker")},
        "knob_writes": {"cpu": 7},
        "unknown_writes": {},
        "refused_plans": {},
    }
    assert run_module._report_text({"ticks": 9, "would_have": would_have}).splitlines()[0::5] == [
        "stopped: shadow run of 9 ticks; nothing was written; it would have",
        "  written, by kind of knob: 7 x cpu",
    ]


def test_a_configuration_with_a_mistake_leaves_nobody_to_go_on(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart into a broken file the mark goes away, so that what follows the end puts everything back."""
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path / "run"))
    (tmp_path / "run").mkdir()
    mark = tmp_path / "run" / "resume"
    mark.touch()
    file.write_text("nonsense")
    assert CliRunner().invoke(cli.main, ["run", "-c", str(file)]).exit_code == 2
    assert not mark.exists()


def test_a_quiet_control_process_can_be_stopped(fake: Callable[[str], Launch], file: Path, tmp_path: Path) -> None:
    """Ctrl-C is heeded at once, not when the next message comes."""
    fake("quiet")
    front = Front(tmp_path / "fake_control.py", file, mode="quiet")
    front.wait_for_start()
    time.sleep(0.3)  # until it waits for the next message
    front.process.send_signal(signal.SIGINT)
    front.process.communicate(timeout=LIMIT_S)
    assert front.process.returncode == 130


def test_a_killed_front_takes_the_control_process_with_it(fake: Callable[[str], Launch], file: Path, tmp_path: Path) -> None:
    """If the front is killed, the control process sees its socket close."""
    fake("good")
    front = Front(tmp_path / "fake_control.py", file)
    front.wait_for_start()
    pidfd = os.pidfd_open(front.control_pid)
    front.process.kill()
    front.process.communicate()
    with selectors.DefaultSelector() as selector:
        selector.register(pidfd, selectors.EVENT_READ)
        assert selector.select(LIMIT_S)
    os.close(pidfd)
    assert (tmp_path / "front-gone").exists()


def test_a_reader_that_goes_away_ends_the_run(fake: Callable[[str], Launch], file: Path, tmp_path: Path) -> None:
    """``parties run --json | head -1`` ends, in silence and in order."""
    fake("good")
    front = Front(tmp_path / "fake_control.py", file, "--json")
    assert front.process.stdout is not None
    assert front.process.stderr is not None
    assert json.loads(front.process.stdout.readline())["type"] == "started"
    front.process.stdout.close()
    assert front.process.wait(LIMIT_S) == 1
    assert front.process.stderr.read() == ""
    front.process.stderr.close()
