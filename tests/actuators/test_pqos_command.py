import errno
import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_pqos import FULL, FakePqos

from actuators.cache import pqos_command
from actuators.cache.pqos_command import Pqos
from actuators.cache.resctrl import Mask
from parties.knob import VANISHED, KnobError

REFUSED = """\
NOTE:  Mixed use of MSR and kernel interfaces to manage
       CAT or CMT & MBM may lead to unexpected behavior.
WARN: Cache allocation not supported on model name 'AMD EPYC'!
WARN: Error opening file '/dev/cpu/0/msr'!
ERROR: discover_capabilities() error 1
Error initializing PQoS library!
"""
NO_RESCTRL = """\
ERROR: OS interface selected but not supported
ERROR: os_cap_init() error 8
Error initializing PQoS library!
"""
UNCONTIGUOUS = """\
ERROR: L3 COS1 bit mask is not contiguous!
SOCKET 0 L3CA COS1 - FAILED!
Allocation configuration error!
"""


@pytest.fixture
def command(tmp_path: Path) -> Callable[[str], Pqos]:
    """Makes a pqos out of a shell script."""

    def make(script: str) -> Pqos:
        file = tmp_path / "pqos"
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
        return Pqos(tmp_path / "snapshot", command=str(file))

    return make


@pytest.mark.parametrize(
    ("script", "number", "words"),
    [
        (f'cat <<"E"\n{REFUSED}E\nexit 1', errno.EOPNOTSUPP, "modprobe msr"),
        (f'cat <<"E"\n{REFUSED}E\nkill -ABRT $$', errno.EOPNOTSUPP, "SIGABRT (pqos aborts where it cannot reach the hardware)"),
        (f'cat <<"E"\n{NO_RESCTRL}E\nexit 1', errno.EOPNOTSUPP, "mount -t resctrl"),
        (f'cat <<"E"\n{UNCONTIGUOUS}E\nexit 1', errno.EIO, "exit code 1: ERROR: L3 COS1 bit mask is not contiguous!; SOCKET 0"),
        ("exit 3", errno.EIO, "exit code 3: it says nothing"),
        ("echo nonsense", errno.EIO, "pqos -s shows no mask"),
    ],
)
def test_a_failure_is_one_message(command: Callable[[str], Pqos], script: str, number: int, words: str) -> None:
    """Whatever way pqos fails, there is one message with its own words and advice, and no errno that would mean vanished."""
    with pytest.raises(KnobError) as caught:
        command(script).look()
    assert caught.value.errno == number
    assert words in str(caught.value)
    assert caught.value.errno not in VANISHED
    assert "NOTE" not in str(caught.value)


def test_a_command_that_is_not_there_says_what_to_install(tmp_path: Path) -> None:
    """No pqos is not a vanished knob."""
    with pytest.raises(KnobError, match="apt-get install intel-cmt-cat") as caught:
        Pqos(tmp_path / "snapshot", command=str(tmp_path / "none")).look()
    assert caught.value.errno == errno.EOPNOTSUPP


def children() -> set[str]:
    """The processes that this one has started and that are not yet gone."""
    return {pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


def test_a_hanging_command_is_killed(command: Callable[[str], Pqos], monkeypatch: pytest.MonkeyPatch) -> None:
    """After the limit it is killed, by its number."""
    before = children()
    monkeypatch.setattr(pqos_command, "LIMIT_S", 0.2)
    with pytest.raises(KnobError, match="killed") as caught:
        command("exec sleep 600").look()
    assert caught.value.errno == errno.ETIMEDOUT
    assert children() <= before


def test_only_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another process looks or writes, nobody else does: an older look would be noted after a newer one."""
    monkeypatch.setattr(pqos_command, "LIMIT_S", 0.05)
    pqos = FakePqos(tmp_path / "snapshot")
    with (tmp_path / "snapshot.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(KnobError, match="another process of ours"):
            pqos.look()
    assert pqos.look().cpus[3].l3 == 1


def test_the_snapshot_is_seen_by_another_process(tmp_path: Path) -> None:
    """What one has looked at the other sees without running anything; every change is in it at once."""
    writer, reader = FakePqos(tmp_path / "snapshot"), Pqos(tmp_path / "snapshot", command="/nonexistent")
    writer.look()
    assert reader.seen().masks[1, 2] == Mask(FULL, FULL)
    writer.set_mask(1, 2, Mask(0x3, 0x3))
    assert reader.seen().masks[1, 2] == Mask(0x3, 0x3)
    writer.set_class(7, 2)
    assert reader.seen().cpus[7].service_class == 2


def test_a_runtime_directory_that_is_gone_is_made(tmp_path: Path) -> None:
    """The service manager removes it when the daemon has ended; a restore afterwards still works."""
    pqos = FakePqos(tmp_path / "run/parties/snapshot")
    pqos.set_class(3, 0)
    assert pqos.seen().cpus[3].service_class == 0


def test_a_refused_change_is_looked_at_as_well(tmp_path: Path) -> None:
    """A change may fail half-way: what is in force afterwards is in the snapshot."""
    pqos = FakePqos(tmp_path / "snapshot")
    pqos.look()
    pqos.masks[0, 1] = 0x1
    pqos.refuse = errno.EIO
    with pytest.raises(KnobError, match="refused"):
        pqos.set_mask(0, 1, Mask(0x3, 0x3))
    assert Pqos(tmp_path / "snapshot").seen().masks[0, 1] == Mask(0x1, 0x1)


@pytest.mark.parametrize("content", [None, "", "{}", '{"masks": 3, "cpus": {}}', '{"masks": {"0:1": "zz"}, "cpus": {}}'])
def test_a_bad_snapshot_is_an_error(tmp_path: Path, content: str | None) -> None:
    """Missing or damaged, it is unreadable, not vanished; and the next look mends it."""
    snapshot = tmp_path / "snapshot"
    if content is not None:
        snapshot.write_text(content)
    pqos = FakePqos(snapshot)
    with pytest.raises(KnobError, match="cannot read what pqos saw last") as caught:
        pqos.seen()
    assert caught.value.errno == errno.EIO
    assert pqos.classes() == {}
    pqos.look()
    assert pqos.seen().cpus


def test_classes_are_kept_for_a_later_daemon(tmp_path: Path) -> None:
    """They outlive looks, but not the boot."""
    pqos = FakePqos(tmp_path / "snapshot")
    pqos.note_classes({"web": 2})
    pqos.look()
    assert Pqos(tmp_path / "snapshot").classes() == {"web": 2}
    content = json.loads((tmp_path / "snapshot").read_text())
    (tmp_path / "snapshot").write_text(json.dumps({**content, "boot": "another"}))
    assert Pqos(tmp_path / "snapshot").classes() == {}


def test_one_look_reads_the_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within it the file is not even looked for again; after it a change is seen."""
    writer, reader = FakePqos(tmp_path / "snapshot"), Pqos(tmp_path / "snapshot")
    writer.look()
    with reader.one_look(), monkeypatch.context() as patch:
        patch.setattr(os, "stat", None)
        assert reader.seen().cpus[0].service_class == 0
    time.sleep(0.02)  # longer than the file system's clock takes for a step
    writer.set_class(0, 3)
    assert reader.seen().cpus[0].service_class == 3


def test_masks_of_code_and_data_are_set_apart(tmp_path: Path) -> None:
    """Only where they differ: one mask sets both."""
    pqos = FakePqos(tmp_path / "snapshot")
    ran: list[tuple[str, ...]] = []
    pqos._run = lambda *arguments: (ran.append(arguments), pqos._shown())[1]  # type: ignore[method-assign,func-returns-value]
    pqos.set_mask(1, 2, Mask(code=0x3, data=0xC))
    assert ran[0] == ("-e", "llc@1:2c=0x3;llc@1:2d=0xc")
