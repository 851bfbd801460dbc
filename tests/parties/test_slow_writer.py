"""The process for slow writes: it answers, it hangs, it dies, it is never waited for."""

from __future__ import annotations

import errno
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

from parties.knob import Knob, KnobError, KnobKind, KnobKinds, KnobRef
from parties.model import NS_PER_S
from parties.slow_writer import SlowResult, SlowWriter, _carry_out

KINDS = "undo_kit:KINDS"
PATIENCE_NS = 120 * NS_PER_S


@pytest.fixture
def writer(undo_kit: ModuleType) -> Iterator[SlowWriter]:
    """A slow writer of files, with a limit of 300 s that no test comes near on the real clock."""
    writer = SlowWriter(KINDS, limit_ns=300 * NS_PER_S)
    yield writer
    writer.close()


@pytest.fixture
def ref(tmp_path: Path) -> KnobRef:
    """A file whose writing takes as long as the value says."""
    return KnobRef("slow-file", (str(tmp_path / "knob"),))


def results(writer: SlowWriter, count: int = 1, now_ns: int | None = None) -> list[SlowResult]:
    """So many results, waited for with patience; ``now_ns`` is what the writer is told instead of the clock."""
    found: list[SlowResult] = []
    deadline_ns = time.monotonic_ns() + PATIENCE_NS
    while len(found) < count and time.monotonic_ns() < deadline_ns:
        found += writer.poll(0 if now_ns is None else now_ns)
        time.sleep(0.002)
    return found


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(pid: int) -> bool:
    deadline_ns = time.monotonic_ns() + PATIENCE_NS
    while alive(pid) and time.monotonic_ns() < deadline_ns:
        time.sleep(0.01)
    return not alive(pid)


def test_value_is_written_and_read_back(writer: SlowWriter, ref: KnobRef) -> None:
    """A result has the ticket of its write and what was read back; None unsets."""
    tickets = [writer.submit(ref, "5", 0), writer.submit(ref, None, 0)]
    assert results(writer, 2) == [SlowResult(tickets[0], found="5"), SlowResult(tickets[1], found=None)]


def test_error_of_the_knob_comes_back(writer: SlowWriter, tmp_path: Path) -> None:
    """The kernel's errno and words; a kind that nobody knows is an error too, and the process goes on."""
    writer.submit(KnobRef("slow-file", (str(tmp_path / "gone/knob"),)), "1", 0)
    writer.submit(KnobRef("no-such-kind", ()), "1", 0)
    gone, unknown = results(writer, 2)
    assert gone.error is not None
    assert gone.error.errno == errno.ENOENT
    assert unknown.error is not None
    assert "no-such-kind" in str(unknown.error)


def test_poll_does_not_wait(writer: SlowWriter, ref: KnobRef) -> None:
    """While a write hangs, poll and submit return without a result."""
    writer.submit(ref, "hang", 0)
    for _ in range(1000):
        assert writer.poll(0) == []


def test_hanging_write_is_abandoned(writer: SlowWriter, ref: KnobRef) -> None:
    """Past the limit the process is killed, the write refused, and the next write is done by another process."""
    ticket = writer.submit(ref, "hang", 0)
    pid = writer.pid
    assert pid is not None
    assert writer.poll(300 * NS_PER_S) == []
    [result] = results(writer, 1, 301 * NS_PER_S)
    assert result.ticket == ticket
    assert result.error is not None
    assert result.error.strerror == "timed out after 301.0 s"
    assert not alive(pid)
    later = writer.submit(ref, "1", 302 * NS_PER_S)
    assert results(writer, 1, 302 * NS_PER_S) == [SlowResult(later, found="1")]
    assert writer.pid != pid


def test_abandoned_write_is_pending_until_its_process_is_gone(
    writer: SlowWriter, ref: KnobRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process stuck in the kernel may still write: its write is not refused, and so not rolled back, before it is gone."""
    writer.submit(ref, "hang", 0)
    assert writer._link is not None
    with monkeypatch.context() as patch:
        patch.setattr(writer._link.process, "poll", lambda: None)
        assert [writer.poll(second * NS_PER_S) for second in (301, 400, 1000)] == [[], [], []]
        queued = writer.submit(ref, "1", 1000 * NS_PER_S)
        assert results(writer, 1, 1000 * NS_PER_S) == [SlowResult(queued, found="1")]
    [result] = results(writer, 1, 1001 * NS_PER_S)
    assert result.error is not None


def test_process_that_ends_is_noticed(writer: SlowWriter, ref: KnobRef) -> None:
    """When the process dies over a write that write is refused, and the one queued behind it is done."""
    lost, kept = writer.submit(ref, "exit", 0), writer.submit(ref, "2", 0)
    first, second = results(writer, 2)
    assert first.ticket == lost
    assert first.error is not None
    assert "ended" in str(first.error)
    assert second == SlowResult(kept, found="2")


def test_process_killed_while_idle_is_replaced(writer: SlowWriter, ref: KnobRef) -> None:
    """Nothing is lost when it is killed between writes."""
    pid = writer.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert wait_until_gone(pid)
    writer.poll(0)
    ticket = writer.submit(ref, "3", 0)
    assert results(writer) == [SlowResult(ticket, found="3")]


def test_kinds_that_cannot_be_imported(undo_kit: ModuleType, ref: KnobRef) -> None:
    """Each write is refused; no process is started again and again meanwhile."""
    writer = SlowWriter("no_such_module:KINDS")
    try:
        writer.submit(ref, "1", 0)
        [result] = results(writer)
        assert result.error is not None
        assert writer.pid is None
    finally:
        writer.close()


def test_selector_wakes_and_takes_in(writer: SlowWriter, ref: KnobRef) -> None:
    """An attached selector wakes when the answer is there, also after the process was replaced."""
    with selectors.DefaultSelector() as selector:
        writer.attach(selector)
        for value in ("1", "exit", "2"):
            writer.submit(ref, value, 0)
            taken: list[SlowResult] = []
            while not taken:
                ready = selector.select(timeout=120)
                assert ready or value == "exit"
                for key, mask in ready:
                    key.data(mask)
                time.sleep(0.01)
                taken = writer.poll(0)
        assert taken[0].found == "2"


def test_close_leaves_no_process(undo_kit: ModuleType, ref: KnobRef) -> None:
    """Not even one that hangs."""
    writer = SlowWriter(KINDS)
    writer.submit(ref, "hang", 0)
    pid = writer.pid
    assert pid is not None
    writer.close()
    assert wait_until_gone(pid)


def test_dies_with_its_parent(undo_kit: ModuleType, ref: KnobRef) -> None:
    """When the control process is killed the process for slow writes dies too, even in the middle of a write."""
    program = (
        "import sys, time; from parties.knob import KnobRef; from parties.slow_writer import SlowWriter\n"
        "w = SlowWriter('undo_kit:KINDS'); r = KnobRef('slow-file', (sys.argv[1],)); w.submit(r, '1', 0)\n"
        "while not w.poll(0): time.sleep(0.01)\n"
        "w.submit(r, 'hang', 0); print(w.pid, flush=True); time.sleep(1000)"
    )
    with subprocess.Popen([sys.executable, "-c", program, ref.address[0]], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
        parent.wait()
    assert wait_until_gone(pid)


class Descriptor:
    """A knob with a kept descriptor: ``dead`` once its group was removed, whatever is there now."""

    made = 0

    def __init__(self) -> None:
        Descriptor.made += 1
        self.dead = False

    def read(self) -> str:
        return "read"

    def write(self, value: str) -> None:
        if self.dead or value == "never":
            raise KnobError(errno.ENODEV, "no such device")


def test_a_group_that_was_made_anew_is_met_with_a_new_knob() -> None:
    """A kept knob's descriptor is that of the group of before: the write is done once more with a fresh one, but not for ever."""
    ref, knobs = KnobRef("kept", ()), dict[KnobRef, Any]()
    kinds: KnobKinds = {"kept": KnobKind(lambda _: cast("Knob", Descriptor()))}
    Descriptor.made = 0
    assert _carry_out(kinds, knobs, ref, "1") == "read"
    knobs[ref].dead = True
    assert _carry_out(kinds, knobs, ref, "2") == "read"
    assert Descriptor.made == 2
    with pytest.raises(KnobError):
        _carry_out(kinds, knobs, ref, "never")
    assert Descriptor.made == 3
    assert knobs == {}
