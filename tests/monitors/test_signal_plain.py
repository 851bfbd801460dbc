"""The signal says what its plainest form says, whatever is fed, asked for and switched off."""

from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st
from plain_signal import PlainSignal

from monitors.histogram_message import Window
from monitors.signal import Signal
from parties.histogram import Histogram
from parties.model import QosTarget
from parties.settings import SignalSettings

MS = 1_000_000
INTERVAL_NS = 500 * MS
BIN_NS = 100 * MS
START_NS = 1_000_000 * MS

part_switches = st.builds(
    SignalSettings,
    window=st.booleans(),
    bounds=st.booleans(),
    vote=st.booleans(),
    stalled=st.booleans(),
    longest_window_ns=st.sampled_from([3_000 * MS, 10_000 * MS]),
    failing_error_rate=st.sampled_from([0.1, 0.5]),
)
targets = st.builds(QosTarget, st.just(10 * MS), st.sampled_from([50.0, 80.0, 90.0, 99.0]))
latencies = st.lists(st.integers(0, 200), max_size=12).map(lambda numbers: [number * MS // 10 for number in numbers])
few = st.integers(0, 3) | st.just(0)


@st.composite
def windows(draw: st.DrawFn, client: str, sequence: int, end_ns: int) -> Window:
    """A window of one bin, of many equal samples or a few different ones, or of none."""
    histogram = Histogram()
    times = draw(st.sampled_from([0, 1, 1, 20]))
    for latency_ns in draw(latencies):
        histogram.add(latency_ns, times) if times else None
    failed, unsent, outstanding = draw(few), draw(few), draw(few)
    age_ns = draw(st.sampled_from([0, 9, 15, 700])) * MS if outstanding else 0
    sent = histogram.count + failed
    counts = (sent + unsent, sent, histogram.count, failed, unsent, outstanding, age_ns)
    return Window("s", client, sequence, end_ns - BIN_NS, end_ns, *counts, histogram)


@st.composite
def runs(draw: st.DrawFn) -> list[tuple[list[Window], int | None, int]]:
    """Intervals, in each of which windows arrive, some later than they should; perhaps a move is done; the time of the question."""
    made: list[tuple[list[Window], int | None, int]] = []
    late: list[Window] = []
    for tick in range(draw(st.integers(1, 12))):
        start_ns = START_NS + tick * INTERVAL_NS
        parts = draw(st.sampled_from([(1, 2, 3, 4, 5), (1, 2, 3, 4, 5), (5,), ()]))
        arriving, late = late, []
        for client in draw(st.sampled_from(["a", "a", "ab"])):
            for part in parts:
                window = draw(windows(client, tick * 5 + part, start_ns + part * BIN_NS))
                (late if draw(st.integers(0, 9)) == 0 else arriving).append(window)
        now_ns = start_ns + INTERVAL_NS + 10 * MS
        changed_ns = now_ns - draw(st.integers(0, 600)) * MS if draw(st.integers(0, 4)) == 0 else None
        made.append((draw(st.permutations(arriving)), changed_ns, now_ns))
    return made


def compared(
    run: list[tuple[list[Window], int | None, int]], target: QosTarget, switches: SignalSettings
) -> Iterator[tuple[object, object]]:
    """What both say at the end of each interval."""
    quick, plain = Signal({"s": target}, switches, INTERVAL_NS), PlainSignal(target, switches, INTERVAL_NS)
    for arriving, changed_ns, now_ns in run:
        for window in arriving:
            quick.feed(window)
            plain.feed(window)
        if changed_ns is not None:
            quick.note_change("s", changed_ns)
            plain.note_change(changed_ns)
        yield quick.views(now_ns)["s"], plain.view(now_ns)


@settings(max_examples=100, deadline=None)
@given(runs(), targets, part_switches)
def test_every_view_is_that_of_the_plain_form(
    run: list[tuple[list[Window], int | None, int]], target: QosTarget, switches: SignalSettings
) -> None:
    """State, latency, bounds, counts: late and missing windows, several clients, moves, stalls, errors and every switch."""
    for quick, plain in compared(run, target, switches):
        assert quick == plain
