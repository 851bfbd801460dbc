"""``parties run`` as a whole: reload by SIGHUP, leaving by SIGUSR1, the watchdog, and what the service manager hears."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from daemon_kit import CONTENT_NS, TOUCHED, VIOLATING_NS, Daemon, Feeder, Site, at_rest, cores_of
from run_kit import Run, configuration
from waiting import LIMIT_S
from write_watch import WriteWatch

pytestmark = pytest.mark.kernel

MakeFeeder = Callable[..., Feeder]


_NOW = b"so far"


class Manager:
    """A service manager's ear: a thread reads all the time, as the queue of such a socket is short."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self.variables = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "400000"}
        self._queue: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._path = path
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def heard(self) -> list[str]:
        """What was said up to now."""
        self._socket.sendto(_NOW, str(self._path))
        return self.until(_NOW.decode())[:-1]

    def until(self, words: str) -> list[str]:
        """What was said until something with these words was."""
        messages = [""]
        while words not in messages[-1]:
            messages.append(self._queue.get(timeout=LIMIT_S))
        return messages[1:]

    def close(self) -> None:
        self._socket.sendto(b"", str(self._path))
        self._thread.join()
        self._socket.close()

    def _read(self) -> None:
        while data := self._socket.recv(4096):
            self._queue.put(data.decode())


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    with contextlib.closing(Manager(tmp_path / "notify")) as ear:
        yield ear


@pytest.fixture
def file(site: Site, tmp_path: Path) -> Path:
    place = tmp_path / "parties.toml"
    place.write_text(configuration(site))
    return place


@pytest.fixture
def run(file: Path, manager: Manager) -> Iterator[Run]:
    yield Run(file, manager.variables)
    Run.end_all()


def watched(site: Site) -> WriteWatch:
    return WriteWatch(
        group.directory(controller) / name for group in site.groups for controller, names in TOUCHED.items() for name in names
    )


def test_a_reload_takes_another_target_and_writes_nothing(
    site: Site, run: Run, file: Path, manager: Manager, feeder: MakeFeeder
) -> None:
    """SIGHUP: another control process, the same amounts, not one write, and the service manager hears of both ends."""
    before = site.values()
    run.started()
    web, store = feeder("web", VIOLATING_NS), feeder("store", CONTENT_NS)
    run.tick(lambda tick: cores_of(tick, "web") >= 500)
    held = cores_of(at_rest(run.tick, web, store), "web")
    manager.until("READY=1")
    with watched(site) as watch:
        file.write_text(configuration(site, target="44ms"))
        run.process.send_signal(signal.SIGHUP)
        run.started()
        tick = run.tick(lambda tick: tick["services"]["web"]["target_ns"] == 44_000_000)
        assert cores_of(tick, "web") == held
        assert watch.written() == set()
        web.silent = False  # its client finds the new socket by itself
        run.tick(lambda tick: tick["services"]["web"]["state"] == "ok")
    code, report, err = run.end(signal.SIGTERM)
    assert (code, report["left_in_force"], err) == (0, False, "")
    said = [line.split("\n")[0] for line in manager.heard()]
    states = [line for line in said if line in {"READY=1", "RELOADING=1", "STOPPING=1"}]
    assert states == ["RELOADING=1", "READY=1", "STOPPING=1"]
    assert any(line.startswith("STATUS=2 services") for line in said)
    assert site.values() == before


def test_a_mistake_in_the_file_is_told_and_changes_nothing(site: Site, run: Run, file: Path, manager: Manager) -> None:
    """The old configuration goes on, in the same control process; the status says so; a good one is taken afterwards."""
    before = site.values()
    run.started()
    run.tick()
    for text, words in (
        ("version = 1\nnonsense", "reload refused"),
        (configuration(site, more='policy = "no-such"'), "no-such"),
        (configuration(site).replace(site.settings.state_directory, "/elsewhere"), "state_directory cannot change"),
    ):
        file.write_text(text)
        run.process.send_signal(signal.SIGHUP)
        assert "stays in force" in run.event(words)
        run.tick()
    assert len([message for message in run.messages if message["type"] == "started"]) == 1
    assert "the last reload was refused" in manager.until("refused")[-1]
    file.write_text(configuration(site, store=False))
    run.process.send_signal(signal.SIGHUP)
    run.started()
    assert set(run.tick()["services"]) == {"web"}
    assert run.end(signal.SIGTERM)[0] == 0
    assert site.values() == before


def test_a_reload_that_cannot_begin_falls_back_to_the_earlier_configuration(site: Site, run: Run, file: Path) -> None:
    """A mistake that only the control process finds, a record that exists: the earlier settings go on where they were."""
    before = site.values()
    run.started()
    run.tick()
    (file.parent / "taken.2.jsonl").touch()
    with watched(site) as watch:
        file.write_text(configuration(site, more=f'record = "{file.parent}/taken.jsonl"'))
        run.process.send_signal(signal.SIGHUP)
        assert "taken.2.jsonl exists already" in run.event("reload failed, the earlier configuration is in force again")
        run.started()
        run.tick()
        assert watch.written() == set()
    assert run.end(signal.SIGTERM)[0] == 0
    assert site.values() == before


def test_what_was_left_is_gone_on_with_by_the_next_run(site: Site, run: Run, file: Path, feeder: MakeFeeder) -> None:
    """SIGUSR1, as before an upgrade by hand: exit code 0, everything in force, and the next run begins there."""
    before = site.values()
    run.started()
    feeder("web", VIOLATING_NS), feeder("store", CONTENT_NS)
    run.tick(lambda tick: cores_of(tick, "web") >= 500)
    code, report, _ = run.end(signal.SIGUSR1)
    assert (code, report["left_in_force"]) == (0, True)
    in_force = site.values()
    assert in_force != before
    following = Run(file, {})
    following.started()
    assert cores_of(following.tick(), "web") >= 500
    assert following.end(signal.SIGTERM)[0] == 0
    assert site.values() == before


def test_a_stop_during_a_reload_puts_everything_back(site: Site, run: Run, file: Path) -> None:
    """SIGTERM right behind SIGHUP, at several distances: whatever was under way, every value is as before at the end."""
    before = site.values()
    run.started()
    for delay_s in (0.0, 0.02, 0.1, 0.2, 0.4):
        one = run if delay_s == 0.0 else Run(file, {})
        if one is not run:
            one.started()
        one.process.send_signal(signal.SIGHUP)
        time.sleep(delay_s)
        one.end(signal.SIGTERM)
        assert site.values() == before, f"after {delay_s} s"
        assert not (Path(site.settings.runtime_directory) / "resume").exists()


def test_a_hung_control_process_falls_silent_and_is_undone_by_the_watchdogs_signal(site: Site, run: Run, manager: Manager) -> None:
    """The dead-man: stopped, it sends no sign of life; SIGABRT to the main process kills it and everything is put back."""
    before = site.values()
    run.started()
    run.tick()
    assert "WATCHDOG=1" in manager.until("WATCHDOG=1")
    children = Path(f"/proc/{run.process.pid}/task/{run.process.pid}/children").read_text().split()
    control = int(children[0])
    os.kill(control, signal.SIGSTOP)
    while Path(f"/proc/{control}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.01)
    manager.heard()  # what was under way
    time.sleep(1)
    assert [line for line in manager.heard() if "WATCHDOG" in line] == []
    assert site.values() != before
    code, _, err = run.end(signal.SIGABRT)
    assert code == 1
    assert "hung" in err
    assert "values put back" in err or "put back" in err
    assert site.values() == before
    assert not Path(f"/proc/{control}").exists()


def test_signs_of_life_come_from_the_tick_alone(site: Site, manager: Manager) -> None:
    """A control process without a front notifies by itself, often enough for its limit, which is as long as four ticks."""
    with Daemon(site.settings, environment=manager.variables) as daemon:
        daemon.started()
        manager.until("READY=1")
        daemon.tick()
        manager.heard()
        for _ in range(21):
            daemon.tick()
        assert sum("WATCHDOG=1" in message for message in manager.heard()) >= 21 // 3
        daemon.stop()
        assert "STOPPING=1" in manager.heard()
