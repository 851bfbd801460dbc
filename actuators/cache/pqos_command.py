"""Runs pqos of intel-cmt-cat as a child process with a time limit, and keeps what it saw in a file for those who cannot wait.

libpqos is never loaded here: without access to the machine's MSRs it aborts the whole process. One run takes 5 to 20 ms, far
too long for the tick; so whoever runs pqos (the slow writer, upkeep, a restore) writes a *snapshot*, and the control process
reads that.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from actuators.cache.pqos_output import PqosAbilities, PqosCpu, PqosState, parse_abilities, parse_state
from actuators.cache.resctrl import Mask
from parties.journal import boot_id
from parties.knob import KnobError
from parties.model import NS_PER_S, Holder

VERSION = 1
LIMIT_S = 2.5
"""Of one run; a write waits for others, runs and looks, and the slow writer gives it 10 s in all."""
_FRESH_NS = NS_PER_S
_MOST_WORDS = 240
_DAMAGED = (ValueError, KeyError, TypeError, AttributeError)  # what a snapshot of the wrong shape raises
_ADVICE = (
    (
        "/dev/cpu/",
        "pqos cannot reach the MSRs: modprobe msr, as root; kernel lockdown and a hardened unit forbid it (docs/cache.md)",
    ),
    ("not supported on model", "the processor has no cache allocation, or a virtual machine hides it"),
    ("OS interface selected but not supported", "the kernel's resctrl is not mounted: mount -t resctrl resctrl /sys/fs/resctrl"),
    ("API lock", "another program of libpqos is at work (fuser /run/lock/libpqos), or /run/lock cannot be written (docs/cache.md)"),
)


class Pqos:
    """The command, and the snapshot of what it saw last. ``interface`` is pqos's own: "msr", or "os" for the kernel's resctrl.

    Every method that runs it raises KnobError with one message; never ENOENT, ENODEV or ESRCH, as nothing has vanished.
    """

    def __init__(self, snapshot: Path, interface: str = "msr", command: str = "pqos") -> None:
        self.snapshot, self.interface, self.command = snapshot, interface, command
        self._state: PqosState | None = None
        self._looked_ns = -_FRESH_NS
        self._seen: tuple[int, int] | None = None
        self._looking = False

    def address(self, *rest: str) -> tuple[str, ...]:
        """What of this a knob's reference has to carry."""
        return (str(self.snapshot), self.interface, self.command, *rest)

    # For those who can wait

    def abilities(self) -> PqosAbilities:
        """What the hardware can."""
        try:
            return parse_abilities(self._run("-D"))
        except ValueError as error:
            raise KnobError(errno.EOPNOTSUPP, str(error)) from error

    def look(self, *, at_most_old_ns: int = 0) -> PqosState:
        """Have pqos say what is in force, and note it in the snapshot; one of this process's own that is that recent does."""
        if self._state is None or time.monotonic_ns() - self._looked_ns >= at_most_old_ns:
            with self._alone():
                self._look()
        if self._state is None:
            raise KnobError(errno.EIO, f"{self.command} -s: nothing was seen")
        return self._state

    def recent(self) -> PqosState:
        """As ``look``; several values that are read one after the other are taken from one."""
        return self.look(at_most_old_ns=_FRESH_NS)

    def set_mask(self, unit: int, service_class: int, mask: Mask) -> None:
        """Set the ways of a class in one unit, and look."""
        place = f"llc@{unit}:{service_class}"
        apart = f"{place}c=0x{mask.code:x};{place}d=0x{mask.data:x}"
        self._change("-e", apart if mask.code != mask.data else f"{place}=0x{mask.code:x}")

    def set_class(self, cpu: int, service_class: int) -> None:
        """Associate a CPU with a class, and look."""
        self._change("-a", f"core:{service_class}={cpu}")

    def _change(self, option: str, what: str) -> None:
        """A look that another process began before the change must not be noted after it: so only one at a time."""
        with self._alone():
            self._looked_ns = -_FRESH_NS
            try:
                self._run(option, what)
            except KnobError:
                with contextlib.suppress(KnobError):  # why the change failed is what matters
                    self._look()
                raise
            self._look()

    def _look(self) -> None:
        try:
            self._state = parse_state(self._run("-s"))
        except ValueError as error:
            raise KnobError(errno.EIO, str(error)) from error
        self._looked_ns = time.monotonic_ns()
        self._note({"masks": _masks_text(self._state), "cpus": _cpus_text(self._state)})

    def _run(self, *arguments: str) -> str:
        line = [self.command, f"--iface={self.interface}", *arguments]
        shown = " ".join(line)
        try:
            process = subprocess.Popen(  # noqa: S603 - the operator's command, without a shell
                line,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env={**os.environ, "LC_ALL": "C"},
            )
        except OSError as error:
            advice = "apt-get install intel-cmt-cat" if error.errno == errno.ENOENT else "see that it can be run"
            raise KnobError(errno.EOPNOTSUPP, f"{self.command}: cannot be started: {error.strerror}; {advice}") from error
        try:
            output, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired as error:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel: it dies once it comes out
                process.communicate(timeout=0.5)
            raise KnobError(errno.ETIMEDOUT, f"{shown}: no end after {LIMIT_S:g} s, killed") from error
        if process.returncode != 0:
            raise KnobError(*_failure(shown, process.returncode, output))
        return output

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes of ours from running pqos meanwhile."""
        lock = self.snapshot.with_name(self.snapshot.name + ".lock")
        try:
            lock.parent.mkdir(mode=0o755, parents=True, exist_ok=True)  # a restore may come when the runtime directory is gone
            fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise KnobError(errno.EIO, f"{lock}: cannot open: {error.strerror}") from error
        try:
            self._wait_for(fd, lock)
            yield
        finally:
            os.close(fd)

    @staticmethod
    def _wait_for(fd: int, lock: Path) -> None:
        deadline_ns = time.monotonic_ns() + int(LIMIT_S * NS_PER_S)
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic_ns() > deadline_ns:
                    raise KnobError(
                        errno.ETIMEDOUT, f"{lock}: another process of ours has been at work for {LIMIT_S:g} s"
                    ) from None
                time.sleep(0.002)
            else:
                return

    # The snapshot

    def seen(self) -> PqosState:
        """The snapshot, without running anything. Raises KnobError where there is none."""
        if self._looking and self._state is not None:
            return self._state
        try:
            stat = os.stat(self.snapshot)  # noqa: PTH116 (a Path costs three times the call, and this is done at every tick)
            stamp = stat.st_mtime_ns, stat.st_ino
            if stamp != self._seen or self._state is None:
                self._state, self._seen = _parse_snapshot(self._content()), stamp
        except (OSError, *_DAMAGED) as error:
            cause = error.strerror if isinstance(error, OSError) else repr(error)
            raise KnobError(errno.EIO, f"{self.snapshot}: cannot read what pqos saw last: {cause}") from error
        return self._state

    @contextlib.contextmanager
    def one_look(self) -> Iterator[None]:
        """Answer every ``seen`` until the end from one."""
        try:
            with contextlib.suppress(KnobError):  # every knob says so itself
                self.seen()
                self._looking = True
            yield
        finally:
            self._looking = False

    def classes(self) -> dict[Holder, int]:
        """The classes that an earlier daemon gave to holders during this boot; empty if none is known."""
        try:
            content = self._content()
            return dict(content["classes"]) if content["boot"] == boot_id() else {}
        except (OSError, *_DAMAGED):
            return {}

    def note_classes(self, classes: Mapping[Holder, int]) -> None:
        """Keep the classes of holders for a later daemon. Raises KnobError."""
        with self._alone():
            self._note({"classes": dict(classes), "boot": boot_id()})

    def _content(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.snapshot.read_bytes())
        return content

    def _note(self, news: Mapping[str, object]) -> None:
        """Replace the snapshot as a whole; what the news does not name stays."""
        try:
            content: dict[str, object] = dict(self._content())
        except (OSError, *_DAMAGED):
            content = {}
        draft = self.snapshot.with_name(f"{self.snapshot.name}.{os.getpid()}")
        try:
            draft.write_text(json.dumps({**content, **news, "version": VERSION}))
            draft.replace(self.snapshot)
        except OSError as error:
            raise KnobError(errno.EIO, f"{self.snapshot}: cannot write: {error.strerror}") from error


def _masks_text(state: PqosState) -> dict[str, str]:
    return {f"{unit}:{number}": str(mask) for (unit, number), mask in state.masks.items()}


def _cpus_text(state: PqosState) -> dict[str, tuple[int, int, int]]:
    return {str(number): (cpu.socket, cpu.l3, cpu.service_class) for number, cpu in state.cpus.items()}


def _parse_snapshot(content: Mapping[str, Any]) -> PqosState:
    masks = {}
    for place, mask in content["masks"].items():
        unit, _, number = place.partition(":")
        masks[int(unit), int(number)] = Mask.parse(mask)
    cpus = {int(number): PqosCpu(*cpu) for number, cpu in content["cpus"].items()}
    return PqosState(masks, cpus)


def _failure(shown: str, code: int, output: str) -> tuple[int, str]:
    """The errno and the message of a run that failed."""
    advice = next((advice for text, advice in _ADVICE if text in output), "")
    number = errno.EOPNOTSUPP if advice else errno.EIO
    lines = [line.strip() for line in output.splitlines()]
    said = [line for line in lines if line and not line.startswith(("NOTE:", "CAT or CMT", "WARN:"))]
    words = "; ".join(said)[:_MOST_WORDS] or "it says nothing"
    if code < 0:
        how = f"ended by {signal.Signals(-code).name}"
        if -code == signal.SIGABRT:
            how += " (pqos aborts where it cannot reach the hardware)"
    else:
        how = f"exit code {code}"
    return number, f"{shown}: {how}: {words}" + (f"; {advice}" if advice else "")
