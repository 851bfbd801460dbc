"""The control process: tick, policy, knob writes, histogram socket, and nothing that may be busy or slow.

It is started with its settings as JSON on a file descriptor (by the front, ``parties run``) and sends the front one datagram of
JSON for each tick, event, start and end. Without a front it runs alone. SIGTERM or SIGINT, or a front that went away, end it in
order: every knob is put back, the report is sent, exit code 0. SIGUSR1 ends it and leaves everything in force for the next one,
which goes on from there (``parties.resume``). Both do so at any moment, also while it starts: the front starts it with signals
held back. Exit code 2 is an operator's mistake, 1 a failure; the message is on standard error, in one line.

Few imports on purpose: in one process with anything busy a tick of 0.6 ms becomes 193 ms.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import random
import selectors
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from actuators.cgroup.hierarchy import SetupError
from monitors.histogram_socket import SocketError
from monitors.topology import TopologyError
from parties.assembly import Host
from parties.codec import CodecError, from_json
from parties.front import FrontFeed
from parties.host import HostPlatform, StartError, StoppedError
from parties.interfaces import Policy
from parties.journal import JournalError
from parties.knob import KnobError
from parties.lock import LockError, RuntimeLock
from parties.loop import Loop
from parties.membership import Membership
from parties.notify import Heartbeat, Notifier
from parties.policies.registry import UnknownPolicyError, policy_named
from parties.record import RecordError, RecordWriter
from parties.report import RunReport
from parties.resume import RESUME_NAME, InForceFile
from parties.settings import ControlSettings
from parties.shadow import ShadowReport
from parties.signals import HEEDED, EndAsked, hold, waking

PRIORITY = -10  # above the machine's ordinary work, below what the kernel runs for itself
EXIT_OK, EXIT_FAILED, EXIT_MISTAKE = 0, 1, 2
MISTAKES = (
    SetupError,
    TopologyError,
    SocketError,
    LockError,
    RecordError,
    CodecError,
    UnknownPolicyError,
    JournalError,
    ValueError,
)


class Control:
    """One run of the controller. ``front`` may be None.

    ``shadow`` and ``hand_back`` are those of ``Host``.
    """

    def __init__(
        self, settings: ControlSettings, front: socket.socket | None, *, shadow: bool = False, hand_back: bool = False
    ) -> None:
        self._settings = settings
        self._front = front
        self._shadow = shadow
        self._hand_back = hand_back
        self._selector = selectors.DefaultSelector()
        self._record: RecordWriter | None = None
        self._feed = FrontFeed(front)
        self._notifier = Notifier()
        self._asked = EndAsked()
        self._platform: HostPlatform | None = None
        self._before_record: list[tuple[int, str, str]] = []  # events that came before there was a record

    def run(self) -> None:
        """Until asked to stop. Raises whatever ``main`` has an exit code for; every knob is put back before that."""
        runtime = Path(self._settings.runtime_directory)
        with contextlib.closing(self._selector), self._stopped_by_signal_or_front(), RuntimeLock(runtime):
            self._notifier.alive(time.monotonic_ns())
            try:
                self._run_here()
            except StoppedError:
                self._feed.stopped({"while_starting": True, "left_in_force": (runtime / RESUME_NAME).exists()})

    def event(self, level: str, text: str) -> None:
        """Something that an operator should see: to the record and the front, or to standard error where there is none."""
        if self._record is not None:
            self._record.event(time.monotonic_ns(), level, text)
        else:
            self._before_record.append((time.monotonic_ns(), level, text))
        if self._feed.connected:
            self._feed.event(level, text)
        else:
            print(f"parties: {level}: {text}", file=sys.stderr)  # noqa: T201 - where there is no front, this is the log

    def _run_here(self) -> None:
        host = Host(
            self._settings,
            self._selector,
            self.event,
            shadow=self._shadow,
            hand_back=self._hand_back,
            alive=self._notifier.alive,
            asked=self._asked,
        )
        try:
            self._run_on(host)
        finally:
            host.close()
            if self._record is not None:
                self._record.close()

    def _run_on(self, host: Host) -> None:
        settings = self._settings
        policy = policy_named(settings.policy)(
            host.node,
            host.services,
            best_effort=bool(settings.best_effort),
            settings=settings.parties,
            rng=random.Random(settings.seed),  # noqa: S311 - decisions have to repeat, not to be secret
        )
        self._record = record = self._begin_record(host)
        host.open(policy)
        self._platform = host.platform
        for text in host.notices:
            self.event("info", text)
        report, shadow, kept = RunReport(), ShadowReport(), host.in_force_file()
        loop = Loop(
            host.platform,
            policy,
            interval_ns=settings.interval_ns,
            membership=Membership(host.node, host.services, grace_ns=settings.absent_grace_ns),
            listeners=(record, report, *((kept,) if kept else (shadow,)), self._feed, Heartbeat(self._notifier)),
        )
        self._start(host, kept)
        self._feed.started(host.node, {service.name: service for service in host.services}, self._about(policy, record))
        self._notifier.ready()
        report.begin()
        loop.run()
        if not self._asked.leaving:
            self._notifier.stopping()
        body = report.as_json(loop.timings) | {"counters": dict(host.counters()), "front_dropped": self._feed.dropped}
        if host.shadow is not None:
            body["would_have"] = shadow.as_json(host.shadow.counted)
        body["left_in_force"] = self._end(host, kept)
        record.report(body)
        if record.failure:
            self.event("error", record.failure)
        self._feed.stopped(body)

    def _start(self, host: Host, kept: InForceFile | None) -> None:
        self._notifier.alive(time.monotonic_ns())
        if self._notifier.watchdog_ns and self._notifier.watchdog_ns < 2 * self._settings.interval_ns:
            self.event("warning", "the service manager's watchdog is shorter than two intervals; set WatchdogSec to more")
        host.start()
        if kept is not None:
            kept.keep()
        _settle(self._settings)

    def _end(self, host: Host, kept: InForceFile | None) -> bool:
        """Put everything back, or leave it for the next daemon if that was asked for; whether it was left."""
        if self._asked.leaving and kept is not None and host.leave(kept):
            return True
        host.restore()
        return False

    def _begin_record(self, host: Host) -> RecordWriter:
        record = RecordWriter(_record_path(self._settings))
        record.header(
            platform="shadow" if self._shadow else "host",
            started_unix_ns=time.time_ns(),
            node=host.node,
            settings=self._settings,
            services=host.services,
        )
        for event in self._before_record:
            record.event(*event)
        return record

    def _about(self, policy: Policy, record: RecordWriter) -> dict[str, object]:
        return {
            "policy": policy.name,
            "record": str(record.path),
            "interval_ns": self._settings.interval_ns,
            "shadow": self._shadow,
        }

    @contextlib.contextmanager
    def _stopped_by_signal_or_front(self) -> Iterator[None]:
        """Signals wake the selector through a socket pair; the front's end of its socket closing is a stop as well."""
        with waking(HEEDED, self._signalled) as wake:
            self._selector.register(wake, selectors.EVENT_READ, lambda _mask: wake.recv(64))
            if self._front is not None:
                self._selector.register(self._front, selectors.EVENT_READ, lambda _mask: self._front_gone())
            yield

    def _front_gone(self) -> None:
        if not self._asked.ending:
            self._signalled(signal.SIGTERM)

    def _signalled(self, number: int) -> None:
        if number == signal.SIGHUP:
            return  # the front's: it starts another process for it
        if number == signal.SIGUSR1:
            self._asked.leave()
        else:
            self._asked.stop()
        if self._platform is not None:
            self._platform.stop()


def _record_path(settings: ControlSettings) -> Path:
    if settings.record:
        return Path(settings.record)
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    return Path(settings.state_directory) / "records" / f"{stamp}-{os.getpid()}.jsonl"


def _settle(settings: ControlSettings) -> None:
    """Raise the process's priority, keep it off the managed CPUs, and keep the collector from walking what never dies."""
    with contextlib.suppress(OSError):  # without the right to it the run is as good, only less punctual
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
    cores = settings.node.cores
    if cores is not None and cores.reserved_cpus:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, cores.reserved_cpus)
    gc.collect()
    gc.freeze()


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m parties.control", description="The control process; 'parties run' starts it.")
    parser.add_argument("--settings-fd", type=int, required=True, metavar="FD", help="where to read the settings (JSON)")
    parser.add_argument("--front-fd", type=int, metavar="FD", help="a connected SEQPACKET socket for snapshots")
    parser.add_argument("--shadow", action="store_true", help="write nothing to the machine, count what would have been done")
    parser.add_argument("--hand-back", action="store_true", help="leave what is in force to another start if this is a mistake")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run and return the exit code."""
    hold()
    arguments = _arguments(argv)
    front = socket.socket(fileno=arguments.front_fd) if arguments.front_fd is not None else None
    try:
        with os.fdopen(arguments.settings_fd, "rb") as file:
            settings = from_json(ControlSettings, json.load(file))
        Control(settings, front, shadow=arguments.shadow, hand_back=arguments.hand_back).run()
    except MISTAKES as error:
        return _say(error, EXIT_MISTAKE)
    except (StartError, KnobError) as error:
        return _say(error, EXIT_FAILED)
    return EXIT_OK


def _say(error: Exception, code: int) -> int:
    print(f"parties: {error}", file=sys.stderr)  # noqa: T201 - the one message of a run that could not be
    return code


if __name__ == "__main__":
    sys.exit(main())
