"""A bench for the signal: one service on a clock of its own, and windows with the samples that a test writes down."""

from collections.abc import Sequence
from dataclasses import replace

from monitors.histogram_message import Window
from monitors.signal import Signal
from parties.histogram import Histogram, bucket, upper
from parties.model import LatencyView, QosTarget
from parties.settings import SignalSettings

MS = 1_000_000
INTERVAL_NS = 500 * MS
BIN_NS = 100 * MS
START_NS = 1_000_000 * MS
TARGET_NS = 10 * MS
PARTS_OFF = SignalSettings(window=False, bounds=False, vote=False, stalled=False)


def shown(latency_ns: int) -> int:
    """How a latency is reported."""
    return upper(bucket(latency_ns))


class Bench:
    """One service's signal on a clock of its own: bins are numbered from 0, a view is asked for a little after an interval."""

    def __init__(self, settings: SignalSettings | None = None, target_ns: int = TARGET_NS, percentile: float = 99.0) -> None:
        self.signal = Signal({"s": QosTarget(target_ns, percentile)}, settings or SignalSettings(), INTERVAL_NS)
        self.sequence = 0

    def feed(self, number: int, latencies: Sequence[int] = (), client: str = "a", **counts: int) -> None:
        """One window of 100 ms that ends with bin ``number``."""
        window = window_of(number, latencies, client, **counts)
        self.signal.feed(replace(window, sequence=self.sequence))
        self.sequence += 1

    def interval(self, number: int, latencies: Sequence[int] = (), **counts: int) -> None:
        """Five windows with the same samples; outstanding and its age as at the end of each."""
        for offset in range(5):
            self.feed(5 * number + offset, latencies, "a", **counts)

    def view(self, number: int, extra_ns: int = 2 * MS) -> LatencyView:
        """The view just after interval ``number``."""
        return self.signal.views(START_NS + (number + 1) * INTERVAL_NS + extra_ns)["s"]


def window_of(number: int, latencies: Sequence[int] = (), client: str = "a", **counts: int) -> Window:
    """A window of 100 ms with these samples."""
    histogram = Histogram()
    for latency in latencies:
        histogram.add(latency)
    done = len(latencies)
    end_ns = START_NS + (number + 1) * BIN_NS
    sent = done + counts.get("failed", 0)
    fields = {"scheduled": sent + counts.get("unsent", 0), "sent": sent, **counts}
    return Window("s", client, number, end_ns - BIN_NS, end_ns, completed=done, histogram=histogram, **fields)


def spread(count: int, low_ns: int, high_ns: int) -> list[int]:
    """Samples at equal distances."""
    return [low_ns + (high_ns - low_ns) * index // max(1, count - 1) for index in range(count)]
