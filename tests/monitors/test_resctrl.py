"""LLC occupancy and memory bandwidth from resctrl's counters."""

import errno
import json
import shutil
from pathlib import Path

import pytest
from resctrl_trees import EPYC, XEON, add_group, make_tree

from monitors.resctrl import KINDS, CacheUse, ResctrlCountersKnob, ResctrlMonitor, has_counters
from parties.model import NS_PER_S

GROUPS = {"a": "parties-a", "b": "parties-b"}


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    """A machine with sixteen L3 domains and two groups of ours."""
    make_tree(tmp_path, EPYC)
    for name in GROUPS.values():
        add_group(tmp_path, name, EPYC)
    return tmp_path


def count(mount: Path, group: str, name: str, *values: object) -> None:
    """Let the counters of the first domains say this."""
    for domain, value in enumerate(values):
        (mount / group / f"mon_data/mon_L3_{domain:02d}" / name).write_text(f"{value}\n")


def seen(mount: Path, monitor: ResctrlMonitor, now_ns: int) -> None:
    """What the upkeep does."""
    monitor.judge(ResctrlCountersKnob(mount, monitor.ref.address[1:], lambda: now_ns).read(), None)


def test_all_domains_are_summed(mount: Path) -> None:
    """Occupancy as it is, traffic as a rate since the reading before."""
    monitor = ResctrlMonitor(mount, GROUPS)
    count(mount, "parties-a", "llc_occupancy", 1000, 200, 30)
    count(mount, "parties-a", "mbm_total_bytes", 5000, 500)
    seen(mount, monitor, NS_PER_S)
    assert monitor.sample() == {"a": CacheUse(1230), "b": CacheUse(0)}
    count(mount, "parties-a", "mbm_total_bytes", 6000, 700)
    seen(mount, monitor, 3 * NS_PER_S)
    assert monitor.sample() == {"a": CacheUse(1230, 600), "b": CacheUse(0, 0)}


@pytest.mark.parametrize("word", ["Unavailable", "Error", "", "-"])
def test_what_the_hardware_does_not_tell(mount: Path, word: str) -> None:
    """A word instead of a number in one domain: the sum is not known, and not 0; the other counter is."""
    monitor = ResctrlMonitor(mount, GROUPS)
    count(mount, "parties-a", "llc_occupancy", 1000, word)
    seen(mount, monitor, NS_PER_S)
    seen(mount, monitor, 2 * NS_PER_S)
    assert monitor.sample()["a"] == CacheUse(None, 0)
    count(mount, "parties-b", "mbm_total_bytes", word)
    seen(mount, monitor, 3 * NS_PER_S)
    assert monitor.sample()["b"] == CacheUse(0, None)
    count(mount, "parties-b", "mbm_total_bytes", 700)
    seen(mount, monitor, 4 * NS_PER_S)
    assert monitor.sample()["b"] == CacheUse(0, None)  # what was not told before is no 0 either


def test_a_group_made_anew(mount: Path) -> None:
    """Counters that fell give no rate once, never a negative one; a group that is gone is left out."""
    monitor = ResctrlMonitor(mount, GROUPS)
    count(mount, "parties-a", "mbm_total_bytes", 5000)
    seen(mount, monitor, NS_PER_S)
    count(mount, "parties-a", "mbm_total_bytes", 10)
    seen(mount, monitor, 2 * NS_PER_S)
    assert monitor.sample()["a"] == CacheUse(0, None)
    count(mount, "parties-a", "mbm_total_bytes", 110)
    seen(mount, monitor, 3 * NS_PER_S)
    assert monitor.sample()["a"] == CacheUse(0, 100)
    (mount / "parties-a").rename(mount / "away")
    seen(mount, monitor, 4 * NS_PER_S)
    assert list(monitor.sample()) == ["b"]


def test_counters_of_one_kind_only(mount: Path) -> None:
    """Bandwidth without occupancy, as some processors have it."""
    for file in mount.glob("parties-a/mon_data/*/llc_occupancy"):
        file.unlink()
    monitor = ResctrlMonitor(mount, GROUPS)
    seen(mount, monitor, NS_PER_S)
    seen(mount, monitor, 2 * NS_PER_S)
    assert monitor.sample()["a"] == CacheUse(None, 0)


def test_no_l3_that_counts(mount: Path) -> None:
    """A group without counters uses an unknown amount, not none."""
    shutil.rmtree(mount / "parties-a/mon_data")
    (mount / "parties-a/mon_data").mkdir()
    monitor = ResctrlMonitor(mount, GROUPS)
    seen(mount, monitor, NS_PER_S)
    assert monitor.sample()["a"] == CacheUse(None, None)


def test_while_it_cannot_be_read_nothing_is_known(mount: Path) -> None:
    """An error of the upkeep's process empties the sample; the next reading fills it."""
    monitor = ResctrlMonitor(mount, GROUPS)
    seen(mount, monitor, NS_PER_S)
    assert monitor.judge(None, OSError(errno.ETIMEDOUT, "timed out")).warnings == ()
    assert monitor.sample() == {}
    seen(mount, monitor, 2 * NS_PER_S)
    assert monitor.sample()["a"] == CacheUse(0, None)


def test_which_machines_count(tmp_path: Path) -> None:
    """One with monitoring does, one without does not."""
    assert has_counters(make_tree(tmp_path / "epyc", EPYC))
    assert not has_counters(make_tree(tmp_path / "xeon", XEON))


def test_the_upkeep_s_process_finds_the_counters_again(mount: Path) -> None:
    """From the address alone; it is never read on the tick."""
    monitor = ResctrlMonitor(mount, GROUPS)
    kind = KINDS[monitor.ref.kind]
    knob = kind.make(monitor.ref.address)
    knob.write(monitor.value)
    assert set(json.loads(knob.read() or "")) == set(GROUPS.values())
    assert kind.slow
