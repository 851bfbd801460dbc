"""A shadow run on real control groups: it decides on what is really there, and not one write reaches the kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_kit import CONTENT_NS, TOUCHED, VIOLATING_NS, Daemon, Feeder, Site, cores_of
from write_watch import WriteWatch

from parties.settings import ControlSettings

pytestmark = pytest.mark.kernel

MakeFeeder = Callable[..., Feeder]


def watched(site: Site) -> WriteWatch:
    return WriteWatch(
        group.directory(controller) / name for group in site.groups for controller, names in TOUCHED.items() for name in names
    )


def beside(settings: ControlSettings, directory: Path) -> ControlSettings:
    return replace(settings, runtime_directory=str(directory / "run"), state_directory=str(directory / "state"))


def test_a_shadow_decides_and_counts_and_writes_nothing(site: Site, feeder: MakeFeeder) -> None:
    """Moves are decided one after the other as if each were in force; no file is written, and there is neither journal nor mark."""
    before = site.values()
    state, run = Path(site.settings.state_directory), Path(site.settings.runtime_directory)
    with watched(site) as watch, Daemon(site.settings, flags=["--shadow"]) as daemon:
        assert daemon.until(lambda message: message["type"] == "started")["shadow"] is True
        feeder("web", VIOLATING_NS)
        feeder("store")
        daemon.tick(lambda tick: cores_of(tick, "web") >= 500)
        report = daemon.stop()
        assert watch.written() == set()
    assert site.values() == before
    assert [file.name for file in state.iterdir()] == ["records"]
    assert {file.name for file in run.iterdir()} == {"lock"}
    (record,) = (state / "records").iterdir()
    assert '"platform":"shadow"' in record.read_text().splitlines()[0]
    would_have = report["would_have"]
    assert would_have["moves_by_resource"] == {name: count for name, count in report["moves"].items() if count}
    assert would_have["moves_by_taker"]["web"] >= 3
    assert sum(would_have["moves_by_reason"].values()) == sum(report["moves"].values())
    assert would_have["knob_writes"]["cgroup1.cpu-bandwidth"] >= 3 + 3
    assert would_have["refused_plans"] == {}


def test_a_shadow_beside_a_daemon_disturbs_it_in_nothing(site: Site, feeder: MakeFeeder, tmp_path: Path) -> None:
    """Both look at the same groups; the daemon sees no foreign write, and its journal still brings everything back."""
    before = site.values()
    with Daemon(site.settings) as daemon, watched(site) as watch:
        daemon.started()
        feeder("web", CONTENT_NS)
        feeder("store", CONTENT_NS)
        daemon.tick(lambda tick: tick["reason"] == "hold-targets-met")
        watch.written()
        settings = beside(site.settings, tmp_path / "shadow")
        with Daemon(settings, flags=["--shadow"]) as shadow:
            shadow.started()
            own = Feeder(Path(settings.histogram_socket), "web", VIOLATING_NS)
            shadow.tick(lambda tick: bool(tick["moves"]))
            own.close()
            assert watch.written() == set()
            shadow.stop()
        assert watch.written() == set()
        daemon.stop()
    assert not [message for message in daemon.messages if message["type"] == "event" and "somebody else" in message["text"]]
    assert site.values() == before


def test_a_shadow_leaves_what_an_earlier_run_left(site: Site, feeder: MakeFeeder) -> None:
    """After a crash, and after values were left on purpose, a shadow restores nothing and takes nothing up."""
    feeder("web", VIOLATING_NS)
    with Daemon(site.settings) as daemon:
        daemon.started().tick(lambda tick: bool(tick["moves"]))
        daemon.process.kill()
        daemon.process.wait()
    mark = Path(site.settings.runtime_directory) / "resume"
    mark.write_text("{}")
    in_force, journal = site.values(), daemon.journal.read_bytes()
    with watched(site) as watch, Daemon(site.settings, flags=["--shadow"]) as shadow:
        shadow.started().tick()
        shadow.stop()
        assert watch.written() == set()
    assert (site.values(), daemon.journal.read_bytes(), mark.read_text()) == (in_force, journal, "{}")
