"""Merging windows and counting violations."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parties.histogram import Histogram
from workloads.intervals import ReportError, Window, intervals, merge, parse_line, parse_window

MS = 1_000_000
TARGET_NS = 10 * MS


def window(start_ms: int = 0, latencies_ms: tuple[float, ...] = (), **changes: int) -> Window:
    histogram = Histogram()
    for latency_ms in latencies_ms:
        histogram.add(round(latency_ms * MS))
    count = len(latencies_ms)
    fields = {"scheduled": count, "sent": count, "completed": count, "failed": 0, "unsent": 0, "outstanding": 0}
    return Window(
        start_ns=start_ms * MS,
        end_ns=(start_ms + 100) * MS,
        histogram=histogram,
        **{"oldest_outstanding_ns": 0, **fields, **changes},
    )


def test_violation_by_percentile() -> None:
    """Two of a hundred answers over the target violate it, one does not: the percentile is p99."""
    assert not window(latencies_ms=(1.0,) * 99 + (20.0,)).violated(TARGET_NS)
    assert window(latencies_ms=(1.0,) * 98 + (20.0,) * 2).violated(TARGET_NS)


def test_violation_by_unsent_requests() -> None:
    """One request that was never sent violates, however fast the others were."""
    assert window(latencies_ms=(1.0,) * 100, unsent=1).violated(TARGET_NS)


def test_violation_by_an_old_request() -> None:
    """A request that has been out for longer than the target violates before it is answered."""
    assert window(latencies_ms=(1.0,) * 100, outstanding=1, oldest_outstanding_ns=TARGET_NS + 1).violated(TARGET_NS)
    assert not window(latencies_ms=(1.0,) * 100, outstanding=1, oldest_outstanding_ns=TARGET_NS).violated(TARGET_NS)


def test_silence_is_no_violation_and_no_stall() -> None:
    """Nothing asked for and nothing answered is idle."""
    assert not window().violated(TARGET_NS)
    assert not window().stalled()


def test_stalled_is_asked_for_and_not_answered() -> None:
    """Requests out, or given up, and none answered is a stall."""
    assert window(outstanding=3).stalled()
    assert window(unsent=3).stalled()
    assert not window(latencies_ms=(1.0,), outstanding=3).stalled()


def test_percentiles_are_of_the_merged_histogram() -> None:
    """The percentile of an interval is that of all its answers, not a mean of its windows' percentiles."""
    quiet, busy = window(0, (1.0,)), window(100, (20.0,) * 999)
    merged = merge([quiet, busy])
    assert merged.latency_ns() == pytest.approx(20 * MS, rel=0.01)
    assert merge([window(0, (20.0,)), window(100, (1.0,) * 999)]).latency_ns() == pytest.approx(1 * MS, rel=0.01)


@given(st.lists(st.lists(st.floats(0.001, 1000), max_size=20), min_size=1, max_size=20), st.integers(1, 5))
def test_merging_keeps_every_count(latencies: list[list[float]], per_interval: int) -> None:
    """However windows are grouped into intervals, no answer is lost or counted twice."""
    windows = [window(100 * n, tuple(found), unsent=n) for n, found in enumerate(latencies)]
    count = -(-len(windows) // per_interval)
    found = intervals(windows, origin_ns=0, length_ns=per_interval * 100 * MS, count=count)
    assert len(found) == count
    assert sum(item.completed for item in found) == sum(item.completed for item in windows)
    assert sum(item.unsent for item in found) == sum(item.unsent for item in windows)
    assert sum(item.histogram.count for item in found) == sum(item.histogram.count for item in windows)


def test_what_lies_outside_is_left_out_and_gaps_show() -> None:
    """Windows before the origin or after the end count nowhere, and an interval without any window is missing."""
    windows = [window(start) for start in (-100, 0, 100, 400, 500)]
    found = intervals(windows, origin_ns=0, length_ns=200 * MS, count=2)
    assert [item.start_ns // MS for item in found] == [0]
    assert found[0].end_ns == 200 * MS


def line(**changes: object) -> dict[str, object]:
    record: dict[str, object] = {"version": 1, "kind": "interval", "window_start_ns": 5, "window_end_ns": 10}
    record |= {"scheduled": 2, "sent": 2, "completed": 2, "failed": 0, "unsent": 0, "outstanding": 0, "oldest_outstanding_ns": 0}
    return record | {"response_histogram": [256, 2]} | changes


def test_report_line_is_read() -> None:
    """An interval line of the load generator becomes a window with its histogram."""
    found = parse_window(parse_line(json.dumps(line())))
    assert (found.start_ns, found.end_ns, found.completed, found.histogram.count) == (5, 10, 2, 2)


@pytest.mark.parametrize(
    "record",
    [
        line(sent=-1),
        line(sent="2"),
        line(completed=True),
        line(window_end_ns=5),
        line(response_histogram=[256]),
        {key: value for key, value in line().items() if key != "unsent"},
    ],
)
def test_malformed_window_is_refused(record: dict[str, object]) -> None:
    """A line that breaks the schema is an error that names the line's kind, never a window."""
    with pytest.raises(ReportError, match="interval line"):
        parse_window(record)


@pytest.mark.parametrize("text", ["", "nonsense", "[]", '{"version": 2}'])
def test_other_lines_are_refused(text: str) -> None:
    """What is not a version 1 object is refused."""
    with pytest.raises(ReportError):
        parse_line(text)
