"""The conformance test: a good client passes, each kind of wrong one is caught by the rule it breaks."""

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from waiting import ahead_of_others

from monitors.histogram_message import Window, encode_window
from parties.conformance import Checker, ConformanceError, Verdict, main, run
from parties.histogram import Histogram

MS = 1_000_000
START_NS = 5_000 * MS

PYTHON_CLIENT = """
import os, threading, time
from parties.client import HistogramClient
with HistogramClient(os.environ["PARTIES_HISTOGRAM_SOCKET"], os.environ["PARTIES_SERVICE"]) as client:
    def work():
        for number in range(30):
            try:
                with client.request():
                    time.sleep(0.003)
                    if number % 10 == 0:
                        raise ValueError
            except ValueError:
                client.unsent()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    time.sleep(0.4)
"""

SILENT_CLIENT = """
import _socket, sys, time
sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
sock.connect(sys.argv[1])
sock.send(b'{"version": 1, "service": "typo"}')
print(sock.recv(65536), file=sys.stderr)
time.sleep(60)
"""


def test_the_python_client_conforms() -> None:
    """Threads, failures, unsent requests and an idle time, through a real socket."""
    with ahead_of_others():  # a window that comes late is a violation
        verdict = run([sys.executable, "-c", PYTHON_CLIENT], duration_ns=60_000 * MS)
    assert verdict.violations == []
    assert verdict.conforms
    assert (verdict.scheduled, verdict.completed, verdict.failed, verdict.unsent) == (132, 108, 12, 12)
    assert verdict.messages >= 4


def test_the_command_line_prints_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    """Readable, or JSON, with the exit code; the command is ended when its time is over."""
    command = ["--duration", "1500ms", "--json", "--", sys.executable, "-I", "-S", "-c", SILENT_CLIENT, "{socket}"]
    assert main(command) == 1
    verdict = json.loads(capsys.readouterr().out)
    assert not verdict["conforms"]
    assert {finding["rule"] for finding in verdict["violations"]} == {"schema", "silence"}
    assert main(["--duration", "60s", sys.executable, "-c", "raise SystemExit(3)"]) == 1
    out = capsys.readouterr().out
    assert "command: the command ended by itself with exit code 3" in out
    assert out.endswith("does not conform\n")


def test_what_cannot_be_tried_is_exit_code_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One message, no traceback: no such program, a socket path that cannot be."""
    assert main([str(tmp_path / "none")]) == 2
    assert "cannot run" in capsys.readouterr().err
    assert main(["--socket", str(tmp_path / "no" / "s"), "true"]) == 2
    assert "cannot listen on" in capsys.readouterr().err
    for arguments in ([], ["--duration", "5", "true"], ["--duration", "0s", "true"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
    errors = capsys.readouterr().err
    assert "is not a duration" in errors
    assert "name the client to run" in errors


def test_the_socket_and_the_children_are_gone_afterwards(tmp_path: Path) -> None:
    """A command that does not want to end is ended, with what it started."""
    path = tmp_path / "s"
    pid_file = tmp_path / "pid"
    script = f"trap '' TERM; sleep 60 & echo $! > {pid_file}; wait"
    verdict = run(["sh", "-c", script], duration_ns=500 * MS, socket_path=path)
    assert not verdict.conforms
    assert not path.exists()
    state = subprocess.run(["ps", "-o", "stat=", "-p", pid_file.read_text()], capture_output=True, text=True, check=False).stdout
    assert state.strip() in ("", "Z", "Zs", "ZN")


def test_a_path_in_use_is_an_error(tmp_path: Path) -> None:
    """Nobody's socket is taken away."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.bind(str(tmp_path / "s"))
        with pytest.raises(ConformanceError, match="choose another --socket"):
            run(["true"], socket_path=tmp_path / "s")


def windows(count: int = 6) -> list[Window]:
    """Aligned windows of a client with ten requests in each, two of them still outstanding at its end."""
    histogram = Histogram({1000: 10})
    first = Window("conformance", "a", 0, START_NS, START_NS + 100 * MS, 12, 12, 10, 0, 0, 2, 5 * MS, histogram)
    return [
        replace(
            first,
            sequence=number,
            window_start_ns=START_NS + number * 100 * MS,
            window_end_ns=START_NS + (number + 1) * 100 * MS,
            scheduled=10 if number else 12,
            sent=10 if number else 12,
        )
        for number in range(count)
    ]


def judged(made: list[Window], *, end_ns: int | None = None, connections: list[int] | None = None, late_ns: int = MS) -> Verdict:
    """The verdict on these windows, each received a millisecond after its end."""
    checker = Checker("conformance", START_NS)
    for number, window in enumerate(made):
        connection = connections[number] if connections else 0
        checker.opened(connection)
        checker.message(connection, encode_window(window), window.window_end_ns + late_ns)
    return checker.finish(made[-1].window_end_ns + 50 * MS if end_ns is None else end_ns)


def test_windows_that_keep_the_rules_conform() -> None:
    """The base of the wrong ones below."""
    verdict = judged(windows())
    assert (verdict.violations, verdict.advice) == ([], [])
    assert str(verdict).endswith("conforms")


def _edit(number: int, **changes: object) -> Callable[[list[Window]], list[Window]]:
    def edit(made: list[Window]) -> list[Window]:
        made[number] = replace(made[number], **changes)  # type: ignore[arg-type]  # fields by name
        return made

    return edit


@pytest.mark.parametrize(
    ("edit", "rule", "text"),
    [
        (_edit(3, sequence=2), "sequence", "it follows 2; the sequence must rise by one"),
        (_edit(5, sequence=7), "sequence", "2 are missing"),
        (_edit(3, window_start_ns=START_NS + 290 * MS), "overlap", "before the previous one's end"),
        (lambda made: [*made[:2], *[replace(window, sequence=window.sequence - 2) for window in made[4:]]], "gap", "200 ms"),
        (_edit(3, service="other"), "service", "'other', not 'conformance'"),
        (_edit(3, outstanding=9), "balance", "'outstanding' is 9, and it should be 2"),
        (_edit(0, outstanding=1), "balance", "2 are unaccounted for"),
        (lambda made: [replace(window, failed=2, sent=12) for window in made], "balance", "plus scheduled, less completed"),
        (lambda made: [replace(window, unsent=1) for window in made], "balance", "it should be"),
        (_edit(3, oldest_outstanding_ns=500 * MS), "oldest", "before the one that was the oldest"),
        (_edit(0, oldest_outstanding_ns=900 * MS), "age", "the unit is ns"),
        (_edit(0, histogram=Histogram({3000: 10})), "age", "the unit is ns"),
        (lambda made: [replace(made[0], window_end_ns=START_NS + 700 * MS)], "length", "700 ms long"),
        (
            lambda made: [made[0], *[replace(w, scheduled=0, sent=0, completed=0, histogram=Histogram()) for w in made[1:]]],
            "oldest",
            "did not age with it",
        ),
    ],
)
def test_each_broken_rule_is_named(edit: Callable[[list[Window]], list[Window]], rule: str, text: str) -> None:
    """A deliberately wrong client is told which rule it broke and where."""
    verdict = judged(edit(windows()))
    assert rule in {finding.rule for finding in verdict.violations}
    assert any(text in str(finding) for finding in verdict.violations)
    assert not verdict.conforms


def test_future_and_late_windows_break_a_rule() -> None:
    """Another clock, or a client that collects before it sends."""
    assert {finding.rule for finding in judged(windows(), late_ns=-2 * MS).violations} == {"future"}
    assert {finding.rule for finding in judged(windows(), late_ns=800 * MS).violations} == {"late"}


def test_silence_while_idle_breaks_a_rule() -> None:
    """At the end, and from the start."""
    made = windows()
    verdict = judged(made, end_ns=made[-1].window_end_ns + 1200 * MS)
    assert [finding.rule for finding in verdict.violations] == ["silence"]
    verdict = Checker("conformance", START_NS).finish(START_NS)
    assert [finding.rule for finding in verdict.violations] == ["silence"]


def test_two_connections_under_one_name_break_a_rule() -> None:
    """Unless the first was closed: that is a client that came back."""
    assert "name" in {finding.rule for finding in judged(windows(), connections=[1, 1, 1, 2, 2, 2]).violations}
    checker = Checker("conformance", START_NS)
    for number, window in enumerate(windows()):
        checker.opened(number)
        checker.message(number, encode_window(window), window.window_end_ns)
        checker.closed(number)
    assert checker.finish(START_NS + 600 * MS).conforms


def test_windows_off_the_grid_are_advice_only() -> None:
    """They are worth less to the daemon, and not wrong; the rest of a long list is counted."""
    shift_ns = 3 * MS
    made = [
        replace(window, window_start_ns=window.window_start_ns + shift_ns, window_end_ns=window.window_end_ns + shift_ns)
        for window in windows(9)
    ]
    verdict = judged(made)
    assert verdict.conforms
    assert [finding.rule for finding in verdict.advice] == ["aligned"] * 5
    assert verdict.counts == {"aligned": 9}
    assert "aligned: 4 more" in str(verdict)


def test_answers_are_the_daemons() -> None:
    """A hello is welcomed, a bad message refused in the daemon's words."""
    checker = Checker("web", START_NS)
    welcome = checker.message(1, b'{"version": 1, "hello": "me"}', START_NS)
    assert welcome is not None
    assert json.loads(welcome)["services"] == ["web"]
    refusal = checker.message(1, b"nonsense", START_NS)
    assert refusal is not None
    assert "not JSON" in json.loads(refusal)["error"]
