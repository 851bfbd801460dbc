"""Signals at random moments of a start: in force, with a next daemon in charge, or everything as before; never in between."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from daemon_kit import Daemon, Site
from run_kit import Run, configuration
from waiting import LIMIT_S

from parties.resume import RESUME_NAME
from parties.settings import ControlSettings, CoreSettings, ServiceSettings

pytestmark = pytest.mark.kernel

MOMENTS = 8  # of each sort
TERM, INT, LEAVE, RELOAD = signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP


def mark_of(settings: ControlSettings) -> Path:
    return Path(settings.runtime_directory) / RESUME_NAME


def left(settings: ControlSettings) -> float:
    """Have a daemon leave its start in force; how long a start takes."""
    begin = time.monotonic()
    with Daemon(settings) as daemon:
        daemon.started()
        took_s = time.monotonic() - begin
        assert daemon.stop(LEAVE)["left_in_force"] is True
    return took_s


def interrupted(settings: ControlSettings, numbers: Sequence[int], delay_s: float) -> dict[str, Any]:
    """Start a daemon and send it these, the first after so long; it ends in order whatever the moment. Its report."""
    with Daemon(settings) as daemon:
        for number in numbers:
            time.sleep(delay_s)
            daemon.process.send_signal(number)
            delay_s /= 4
        report = daemon.until(lambda message: message["type"] == "stopped")["report"]
        code = daemon.process.wait(timeout=LIMIT_S)
        assert daemon.process.stderr is not None
        assert (code, daemon.process.stderr.read()) == (0, "")
        return dict(report)


@pytest.mark.parametrize("numbers", [[TERM], [INT], [RELOAD, TERM], [LEAVE, TERM], [TERM, LEAVE]])
@pytest.mark.parametrize("resumes", [False, True], ids=["fresh", "resumed"])
def test_a_stop_during_a_start_puts_everything_back(site: Site, numbers: list[int], *, resumes: bool) -> None:
    """Exit code 0, every value as it was before the first daemon, no journal and no mark, at every moment."""
    rng = random.Random(f"{numbers} {resumes}")  # noqa: S311 - the moments have to repeat
    before, settings = site.values(), site.settings
    took_s = left(settings)
    assert site.values() != before
    for number in range(MOMENTS // 2):
        if resumes and number:
            left(settings)
        elif not resumes and not number:
            with Daemon(settings) as daemon:
                daemon.started().stop()
        delay_s = rng.random() * took_s * 1.1
        report = interrupted(settings, numbers, delay_s)
        if LEAVE not in numbers:
            assert report["left_in_force"] is False
        elif report["left_in_force"]:  # it had left when the stop came
            assert mark_of(settings).exists()
            with Daemon(settings) as daemon:
                daemon.started().stop()
        assert site.values() == before, delay_s
        assert not mark_of(settings).exists()
        assert not (Path(settings.state_directory) / "journal.jsonl").exists()


def test_a_wish_to_leave_during_a_start_loses_nothing(site: Site) -> None:
    """The next start goes on with what the one before the interrupted start left; the last one puts back what was there first."""
    rng = random.Random(5)  # noqa: S311 - the moments have to repeat
    before = site.values()
    took_s = left(site.settings)
    in_force = site.values()
    early = 0
    for _ in range(2 * MOMENTS):
        report = interrupted(site.settings, [LEAVE], rng.random() * took_s)
        assert report["left_in_force"] is True
        early += "while_starting" in report
        assert mark_of(site.settings).exists()
        assert site.values() == in_force
    assert early >= MOMENTS // 4, "the moments were all after the start: the test shows nothing"
    with Daemon(site.settings) as daemon:
        daemon.started().stop()
    assert site.values() == before


def test_a_wish_to_leave_during_a_start_that_changes_much_is_taken_up(site: Site) -> None:
    """Interrupted while a service less, or one more, is put in force: the next start, with either, is right all the same."""
    rng = random.Random(6)  # noqa: S311 - the moments have to repeat
    before = site.values()
    took_s = left(site.settings)
    fewer = replace(site.settings, services=site.settings.services[:1])
    for number in range(MOMENTS):
        assert interrupted(fewer if number % 2 else site.settings, [LEAVE], rng.random() * took_s)["left_in_force"] is True
        if number % 4 == 3:
            settings = fewer if number % 8 == 7 else site.settings
            with Daemon(settings) as daemon:
                tick = daemon.started().tick()
                assert set(tick["services"]) == {service.name for service in settings.services}
                total = [*tick["services"].values(), tick["best_effort"], tick["idle"]]
                assert sum(holder["amounts"].get("cores", 0) for holder in total) == 1000
                assert daemon.stop(LEAVE)["left_in_force"] is True
    with Daemon(site.settings) as daemon:
        daemon.started().stop()
    assert site.values() == before


def test_a_wish_to_leave_a_fresh_start_puts_everything_back_or_leaves_all_of_it(site: Site) -> None:
    """There is nothing of an earlier daemon: what was begun is undone, and said so; once it is in force it is left."""
    rng = random.Random(7)  # noqa: S311 - the moments have to repeat
    before = site.values()
    took_s = left(site.settings)
    in_force = site.values()
    with Daemon(site.settings) as daemon:
        daemon.started().stop()
    for _ in range(MOMENTS):
        report = interrupted(site.settings, [LEAVE], rng.random() * took_s * 1.1)
        assert site.values() == (in_force if report["left_in_force"] else before)
        assert mark_of(site.settings).exists() is report["left_in_force"]
        if report["left_in_force"]:
            with Daemon(site.settings) as daemon:
                daemon.started().stop()
    assert site.values() == before


def test_a_mistake_is_one_for_a_start_that_was_asked_to_end_as_well(site: Site) -> None:
    """Whichever comes first, the message or the stop: nothing of an earlier daemon stays."""
    before = site.values()
    wrong = replace(site.settings, services=(*site.settings.services, ServiceSettings("ghost", 1, ("/parties-test-no-such",))))
    took_s = left(site.settings)
    for part in (0.2, 0.5, 0.8):
        with Daemon(wrong) as daemon:
            time.sleep(part * took_s)
            daemon.process.send_signal(TERM)
            assert daemon.process.wait(timeout=LIMIT_S) in {0, 2}
        assert site.values() == before
        left(site.settings)
    with Daemon(site.settings) as daemon:
        daemon.started().stop()


def test_a_mistake_that_shows_before_anything_else_leaves_nothing_in_force_for_nobody(site: Site) -> None:
    """A CPU that there is not, found before the groups are looked at: exit code 2, and everything is as before."""
    before = site.values()
    left(site.settings)
    with Daemon(replace(site.settings, node=replace(site.settings.node, cores=CoreSettings(managed_cpus=(4096,))))) as daemon:
        assert daemon.process.wait(timeout=LIMIT_S) == 2
    assert site.values() == before
    assert not mark_of(site.settings).exists()


# The front


@pytest.fixture
def file(site: Site, tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "parties.toml"
    place.write_text(configuration(site))
    yield place
    Run.end_all()


def end_of(run: Run) -> tuple[int, str]:
    """Exit code and standard error of one that was told to end."""
    out, err = run.process.communicate(timeout=LIMIT_S)
    run.messages += [json.loads(line) for line in out.splitlines()]
    return run.process.returncode, err


def wait_until_it_listens(run: Run) -> None:
    """A signal cannot be held back before the interpreter runs; all that comes before it has written nothing."""
    status = Path(f"/proc/{run.process.pid}/status")
    while True:
        words = dict(line.split(":\t") for line in status.read_text().splitlines() if line.startswith(("SigBlk", "SigCgt")))
        if (int(words["SigBlk"], 16) | int(words["SigCgt"], 16)) >> (LEAVE - 1) & 1:
            return
        assert run.process.poll() is None
        time.sleep(0.001)


SEQUENCES: Sequence[Sequence[int]] = ([RELOAD, RELOAD], [RELOAD, TERM], [TERM], [LEAVE], [RELOAD, LEAVE], [RELOAD, RELOAD, RELOAD])


@pytest.mark.parametrize("sequence", SEQUENCES, ids=lambda numbers: "-".join(signal.Signals(one).name for one in numbers))
@pytest.mark.parametrize("running", [False, True], ids=["starting", "running"])
def test_signals_to_parties_run_in_quick_succession(site: Site, file: Path, sequence: Sequence[int], *, running: bool) -> None:
    """From its first moment, or while it runs: reloads end in a daemon in charge, all else in order with exit code 0."""
    rng = random.Random(f"{sequence} {running}")  # noqa: S311 - the moments have to repeat
    before = site.values()
    for _ in range(MOMENTS // 4):
        run = Run(file, {})
        if running:
            run.started()
        else:
            wait_until_it_listens(run)
        for number in sequence:
            time.sleep(rng.random() * 0.5)
            run.process.send_signal(number)
        if sequence[-1] == RELOAD:
            run.tick()
            run.process.send_signal(TERM)
        assert end_of(run) == (0, "")
        if mark_of(site.settings).exists():
            assert sequence[-1] == LEAVE
            with Daemon(site.settings) as daemon:
                daemon.started().stop()
        assert site.values() == before
        assert not mark_of(site.settings).exists()
        assert not (Path(site.settings.state_directory) / "journal.jsonl").exists()


def test_a_stop_before_anything_was_begun_puts_back_what_an_earlier_run_left(site: Site, file: Path) -> None:
    """The first signal that can be heeded at all, a stop or a wish to leave, finds what was left and heeds it."""
    before = site.values()
    left(site.settings)
    in_force = site.values()
    for number, found in ((LEAVE, in_force), (TERM, before)):
        run = Run(file, {})
        wait_until_it_listens(run)
        run.process.send_signal(number)
        assert end_of(run) == (0, "")
        assert site.values() == found


def test_helpers_do_not_inherit_what_is_held_back(site: Site, spawn: Callable[..., subprocess.Popen[bytes]]) -> None:
    """The processes for slow writes and upkeep can be ended by anybody, as ever."""
    del spawn
    with Daemon(site.settings) as daemon:
        daemon.started()
        children = Path(f"/proc/{daemon.process.pid}/task/{daemon.process.pid}/children").read_text().split()
        assert children
        for child in children:
            (held,) = [line for line in Path(f"/proc/{child}/status").read_text().splitlines() if line.startswith("SigBlk")]
            assert int(held.split()[1], 16) == 0
        daemon.stop()
