"""The daemon as a whole, on real control groups: faults of services, clients, knobs and operators, and its undoing."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_kit import CONTENT_NS, INTERVAL_NS, VIOLATING_NS, Daemon, Feeder, Site, cores_of, state_of
from waiting import LIMIT_S, remove_group

from actuators.cgroup.group import Controller
from actuators.cgroup.v1 import ControlGroupV1
from actuators.registry import KINDS
from parties.client import HistogramClient
from parties.model import BEST_EFFORT, MILLICORES_PER_CORE, NS_PER_S
from parties.restore import restore
from parties.settings import MS, ControlSettings, MemorySettings, NodeSettings, ServiceSettings

pytestmark = pytest.mark.kernel

Spawn = Callable[..., subprocess.Popen[bytes]]
MakeFeeder = Callable[..., Feeder]

HOLD_200_MIB = "import time; held = bytearray(b'x') * (200 << 20); print('held', flush=True); time.sleep(600)"


def refused(settings: ControlSettings) -> tuple[int, str]:
    """The exit code and the message of a daemon that is not to start."""
    with Daemon(settings) as daemon:
        _, error = daemon.process.communicate(timeout=LIMIT_S)
        return daemon.process.returncode, error


def test_a_violating_service_is_given_cores_and_all_is_put_back_at_the_end(site: Site, feeder: MakeFeeder) -> None:
    """The main path: moves reach the kernel's files while it runs, and after SIGTERM every value is what it was."""
    before = site.values()
    with Daemon(site.settings) as daemon:
        daemon.started()
        feeder("web", VIOLATING_NS)
        feeder("store")
        tick = daemon.tick(lambda tick: cores_of(tick, "web") >= 500)
        quota = int((site.web.directory(Controller.CPU) / "cpu.cfs_quota_us").read_text())
        period = int((site.web.directory(Controller.CPU) / "cpu.cfs_period_us").read_text())
        assert quota * MILLICORES_PER_CORE // period >= 500
        assert (
            sum(cores_of(tick, holder) for holder in ("web", "store", BEST_EFFORT)) + tick["idle"]["amounts"].get("cores", 0)
            == 1000
        )
        assert (site.job.directory(Controller.CPU) / "cpu.idle").read_text().strip() == "1"
        assert site.values() != before
        report = daemon.stop()
    assert report["moves"]["cores"] >= 3
    assert site.values() == before
    assert not daemon.journal.exists()


def test_sigkill_at_any_moment_then_restore_brings_every_value_back(site: Site, feeder: MakeFeeder, tmp_path: Path) -> None:
    """At 15 seeded moments, the start included: after restore every value, the unset ones too, is as before."""
    rng = random.Random(7)  # noqa: S311 - the moments have to repeat
    before = site.values()
    changed = 0
    feeds = [feeder("web", VIOLATING_NS), feeder("store")]
    for number in range(15):
        settings = replace(site.settings, interval_ns=50 * MS, state_directory=str(tmp_path / f"state{number}"))
        feeds[number % 2].latency_ns, feeds[1 - number % 2].latency_ns = VIOLATING_NS, VIOLATING_NS // 10
        with Daemon(settings) as daemon:
            if number % 3:
                daemon.started()
            time.sleep(rng.uniform(0.0, 0.4))
            daemon.process.send_signal(signal.SIGKILL)
            daemon.process.wait()
            changed += site.values() != before
            report = restore(daemon.journal, KINDS)
        assert report.complete, report
        assert site.values() == before, f"after {report}"
    assert changed >= 5, "the moments were all before the first write: the test shows nothing"


def test_the_next_start_puts_back_what_a_killed_daemon_left(site: Site, feeder: MakeFeeder) -> None:
    """Recovery at start: the second run's own journal holds the original values, so its end brings them back."""
    before = site.values()
    feeder("web", VIOLATING_NS)
    with Daemon(site.settings) as daemon:
        daemon.started().tick(lambda tick: bool(tick["moves"]))
        daemon.process.kill()
        daemon.process.wait()
    assert site.values() != before
    with Daemon(site.settings) as daemon:
        daemon.event("values put back")
        daemon.started().stop()
    assert site.values() == before


def test_a_second_daemon_on_the_same_runtime_directory_is_refused(site: Site) -> None:
    """One daemon per runtime directory; the message names the first one's process."""
    with Daemon(site.settings) as first:
        first.started()
        code, message = refused(site.settings)
        assert code == 2
        assert f"process {first.process.pid}" in message
        assert first.process.poll() is None


def test_a_socket_in_use_is_refused(site: Site) -> None:
    """Somebody else listening on the histogram socket's path is not pushed aside."""
    directory = Path(site.settings.runtime_directory)
    directory.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.bind(str(directory / "histogram.sock"))
        other.listen()
        code, message = refused(site.settings)
    assert code == 2
    assert "histogram.sock" in message
    assert str(os.getpid()) in message


def test_a_missing_group_is_refused_with_its_place(site: Site) -> None:
    """Every missing directory of a service's group is named; nothing is written."""
    before = site.values()
    services = (*site.settings.services, ServiceSettings("ghost", 10 * MS, ("/parties-test-no-such",)))
    code, message = refused(replace(site.settings, services=services))
    assert code == 2
    assert "ghost" in message
    assert "/parties-test-no-such" in message
    assert len(message.splitlines()) == 1
    assert site.values() == before


def test_two_services_on_one_group_are_refused(site: Site) -> None:
    """A group belongs to one service."""
    web, store = site.settings.services
    code, message = refused(replace(site.settings, services=(web, replace(store, cgroups=web.cgroups))))
    assert code == 2
    assert f"{site.web.path}: given to web and to store" in message


def test_a_quota_that_the_kernel_would_refuse_is_not_managed_and_says_why(site: Site) -> None:
    """A floor of 100 millicores in a period of 5 ms is a quota of 0.5 ms; the kernel takes none under 1 ms."""
    cores = site.settings.node.cores
    assert cores is not None
    node = replace(site.settings.node, cores=replace(cores, period_ns=5 * MS))
    with Daemon(replace(site.settings, node=node)) as daemon:
        assert "quota of 500 us" in daemon.event("cores")
        daemon.started().stop()


def test_memory_that_cannot_shrink_at_the_start_ends_the_start_and_undoes_it(site: Site, spawn: Spawn) -> None:
    """EBUSY at the start: exit code 1, one message with the kernel's word, everything as before, the process alive."""
    process = spawn(site.job, sys.executable, "-c", HOLD_200_MIB)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    before = site.values()
    node = replace(site.settings.node, memory=MemorySettings(192 << 20, 64 << 20))
    code, message = refused(replace(site.settings, node=node))
    assert code == 1
    assert "Device or resource busy" in message
    assert site.values() == before
    assert process.poll() is None


def test_memory_that_cannot_shrink_while_running_costs_the_move_and_nothing_else(
    site: Site, spawn: Spawn, feeder: MakeFeeder
) -> None:
    """EBUSY in a move: refused with the kernel's word, the partition as it was, the holder alive, and the run goes on."""
    process = spawn(site.job, sys.executable, "-c", HOLD_200_MIB)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    node = replace(site.settings.node, memory=MemorySettings(1536 << 20, 256 << 20))
    before = site.values()
    with Daemon(replace(site.settings, node=node)) as daemon:
        daemon.started()
        feeder("web", VIOLATING_NS)
        feeder("store", VIOLATING_NS)
        daemon.event("Device or resource busy")
        tick = daemon.tick()
        assert tick["best_effort"]["amounts"]["memory"] == 256 << 20
        assert process.poll() is None
        assert daemon.stop()["refused"] >= 1
    assert site.values() == before


def test_memory_that_a_job_uses_is_asked_for_once_until_it_uses_less(site: Site, spawn: Spawn, feeder: MakeFeeder) -> None:
    """With nothing but memory to trade, one refusal and no more of them; once the job is gone its memory is taken."""
    process = spawn(site.job, sys.executable, "-c", HOLD_200_MIB)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    node = NodeSettings(memory=MemorySettings(1536 << 20, 64 << 20))
    with Daemon(replace(site.settings, node=node)) as daemon:
        daemon.started()
        feeder("web", VIOLATING_NS)
        feeder("store", VIOLATING_NS)
        daemon.event("Device or resource busy")
        for _ in range(10):
            tick = daemon.tick(lambda message: "hold" in message["reason"])
            assert tick["best_effort"]["amounts"]["memory"] == 256 << 20
        assert sum("refused" in message["text"] for message in daemon.messages if message["type"] == "event") == 1
        process.kill()
        daemon.tick(lambda message: message["best_effort"]["amounts"]["memory"] < 256 << 20)
        daemon.stop()


def test_a_service_that_dies_gives_back_and_is_admitted_with_new_processes(site: Site, spawn: Spawn, feeder: MakeFeeder) -> None:
    """Absent after its process ended; released after the grace time; admitted when another process is in its group."""
    feeder("store")
    with Daemon(site.settings) as daemon:
        daemon.started().tick(lambda tick: state_of(tick, "web") == "stale")
        site.processes["web"].kill()
        site.processes["web"].wait()
        daemon.tick(lambda tick: state_of(tick, "web") == "absent")
        daemon.tick(lambda tick: tick["reason"] == "absent-released" and tick["subject"] == "web")
        assert cores_of(daemon.tick(), "web") == 100
        spawn(site.web, "sleep", "600")
        daemon.tick(lambda tick: tick["reason"] == "returned-admitted")
        assert cores_of(daemon.tick(), "web") > 100
        daemon.stop()


def test_a_group_that_was_made_anew_is_managed_again(
    site: Site, cgroup_factory: Callable[[str], ControlGroupV1], spawn: Spawn, feeder: MakeFeeder
) -> None:
    """A service manager that removes and re-makes the group: vanished, then there again with our value, put back at the end."""
    feeder("store")
    with Daemon(site.settings) as daemon:
        daemon.started()
        site.processes["web"].kill()
        site.processes["web"].wait()
        daemon.tick(lambda tick: tick["reason"] == "absent-released" and tick["subject"] == "web")
        for controller in Controller:
            remove_group(site.web.directory(controller))
        daemon.event("vanished")
        cgroup_factory("web")
        spawn(site.web, "sleep", "600")
        daemon.event("is there again")
        daemon.tick(lambda tick: tick["reason"] == "returned-admitted")
        daemon.tick()
        quota = site.web.directory(Controller.CPU) / "cpu.cfs_quota_us"
        assert int(quota.read_text()) > 0
        daemon.stop()
        assert int(quota.read_text()) == -1


def test_a_client_that_stops_sending_makes_its_service_stale_and_held(site: Site, feeder: MakeFeeder) -> None:
    """No message is not good news: the service is neither shrunk nor grown."""
    web = feeder("web", VIOLATING_NS)
    feeder("store")
    with Daemon(site.settings) as daemon:
        daemon.started().tick(lambda tick: state_of(tick, "web") == "ok")
        web.silent = True
        held = cores_of(daemon.tick(lambda tick: state_of(tick, "web") == "stale"), "web")
        for _ in range(8):
            tick = daemon.tick()
            assert cores_of(tick, "web") == held
            assert tick["subject"] != "web"
        web.silent = False
        daemon.tick(lambda tick: cores_of(tick, "web") > held)
        daemon.stop()


def test_a_service_that_hangs_with_requests_outstanding_is_stalled_and_upsized_at_once(site: Site, feeder: MakeFeeder) -> None:
    """Nothing completes, requests wait: the worst violation, not idleness."""
    feeder("store")
    path = Path(site.settings.runtime_directory) / "histogram.sock"
    with Daemon(site.settings) as daemon:
        daemon.started()
        began_ns = time.monotonic_ns()
        with HistogramClient(str(path), "web", "hung", window_ns=INTERVAL_NS // 5, background=False) as client:
            requests = [client.scheduled().sent() for _ in range(20)]
            while not any(
                message["type"] == "tick" and message["reason"].startswith("upsize") and message["subject"] == "web"
                for message in daemon.messages
            ):
                time.sleep(INTERVAL_NS / 5e9)
                client.flush()
                daemon.tick()
                assert time.monotonic_ns() - began_ns < LIMIT_S * NS_PER_S
            assert any(state_of(message, "web") == "stalled" for message in daemon.messages if message["type"] == "tick")
            for request in requests:
                request.completed()
        daemon.stop()


def test_a_service_that_answers_only_errors_is_failing_and_never_shrunk(site: Site, feeder: MakeFeeder) -> None:
    """Failing fast is not health: its resources stay, while a healthy relaxed service is shrunk."""
    web = feeder("web")
    web.failing = True
    feeder("store")
    with Daemon(site.settings) as daemon:
        first = daemon.started().tick(lambda tick: state_of(tick, "web") == "failing")
        daemon.tick(lambda tick: cores_of(tick, "store") < cores_of(first, "store"))
        shrunk = [
            move
            for message in daemon.messages
            if message["type"] == "tick" and state_of(message, "web") == "failing"
            for move in message["moves"]
            if move["giver"] == "web"
        ]
        assert shrunk == []
        daemon.stop()


def test_bad_messages_are_answered_and_counted_and_disturb_nobody(site: Site, feeder: MakeFeeder) -> None:
    """Malformed, for an unknown service, twice, and out of order: each refused or dropped, and the service stays judged."""
    feeder("web")
    with Daemon(site.settings) as daemon:
        daemon.started()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as rude:
            rude.connect(str(daemon.socket_path))
            rude.settimeout(LIMIT_S)
            rude.send(b"{")
            assert b"error" in rude.recv(4096)
            window = (
                '{"version":1,"service":"%s","client":"rude","sequence":%d,"window_start_ns":%d,"window_end_ns":%d,'
                '"completed":1,"histogram":[1780,1]}'
            )
            now_ns = time.monotonic_ns()
            rude.send((window % ("nobody", 1, now_ns - 2, now_ns)).encode())
            answer = rude.recv(4096)
            assert b"nobody" in answer
            assert b"web" in answer
            for sequence in (5, 5, 4):
                rude.send((window % ("store", sequence, now_ns - 2, now_ns)).encode())
            rude.send(b"}")
            assert b"error" in rude.recv(4096)  # and so all of them were read
        daemon.tick(lambda tick: state_of(tick, "web") == "ok")
        counters = daemon.stop()["counters"]
    assert counters["refused"] == 3
    assert counters["dropped"] == 2


def test_a_knob_that_somebody_else_changes_is_noticed_and_written_again(site: Site, feeder: MakeFeeder) -> None:
    """Drift is told with both values, and mended by the stated rule."""
    feeder("web", CONTENT_NS)
    quota = site.web.directory(Controller.CPU) / "cpu.cfs_quota_us"
    with Daemon(site.settings) as daemon:
        daemon.started().tick()
        quota.write_text("7777")
        assert "7777" in daemon.event("somebody else wrote")
        daemon.event("written again")
        assert quota.read_text().strip() != "7777"
        daemon.stop()


def test_a_full_disk_under_the_journal_ends_the_start_and_undoes_it(
    site: Site, cgroup_factory: Callable[[str], ControlGroupV1], tmp_path: Path
) -> None:
    """ENOSPC in the middle of the journal (a real one, on a file system of one page): exit code 1, and everything as before."""
    state = tmp_path / "state"
    state.mkdir()
    before = site.values()
    # Names that make the journal longer than a page.
    long = tuple(ServiceSettings(letter, 10 * MS, (cgroup_factory(letter * 240).path,)) for letter in "xyz")
    settings = replace(site.settings, services=(*site.settings.services, *long), record=str(tmp_path / "record.jsonl"))
    mount = f'mount -t tmpfs -o size=4k none {state} && exec "$@"'
    with Daemon(settings, wrapper=("unshare", "--mount", "sh", "-c", mount, "sh")) as daemon:
        _, message = daemon.process.communicate(timeout=LIMIT_S)
        assert daemon.process.returncode == 1, message
    assert "No space left on device" in message
    assert site.values() == before


def test_without_permission_it_ends_in_one_message(site: Site, tmp_path: Path) -> None:
    """Another user's daemon may not write these groups: one line that names the place, nothing changed."""
    python = "/usr/bin/python3"
    tmp_path.chmod(0o777)
    for parent in tmp_path.parents:
        if parent.owner() == "root" and parent != Path("/tmp"):  # noqa: S108 - pytest's own folders are closed to other users
            parent.chmod(parent.stat().st_mode | 0o011)
    before = site.values()
    nobody = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
    probe = subprocess.run([*nobody, python, "-c", "import parties.control"], check=False, capture_output=True)
    if probe.returncode:
        pytest.skip(f"another user cannot run this tree: {probe.stderr.decode().strip().splitlines()[-1]}")
    with Daemon(site.settings, wrapper=nobody, python=python) as daemon:
        _, message = daemon.process.communicate(timeout=LIMIT_S)
    assert daemon.process.returncode in (1, 2)
    assert "ermission denied" in message
    assert "Traceback" not in message
    assert site.values() == before


def test_an_unmanaged_run_writes_nothing_and_still_records(site: Site, feeder: MakeFeeder, tmp_path: Path) -> None:
    """The policy that partitions nothing: latencies are observed, no knob is touched."""
    before = site.values()
    feeder("web", VIOLATING_NS)
    with Daemon(replace(site.settings, policy="unmanaged", record=str(tmp_path / "r.jsonl"))) as daemon:
        daemon.started().tick(lambda tick: state_of(tick, "web") == "ok")
        assert site.values() == before
        daemon.stop()
    assert (tmp_path / "r.jsonl").stat().st_size > 0


def test_idle_only_touches_the_idle_class_alone_and_puts_the_shares_back(site: Site) -> None:
    """Leaving the idle class resets shares in the kernel; the job's 517 are there again."""
    before = site.values()
    with Daemon(replace(site.settings, policy="idle-only")) as daemon:
        daemon.started().tick()
        changed = {name for name, value in site.values().items() if value != before[name]}
        assert {Path(name).name for name in changed} <= {"cpu.idle", "cpu.shares"}
        assert (site.job.directory(Controller.CPU) / "cpu.idle").read_text().strip() == "1"
        daemon.stop()
    assert site.values() == before
