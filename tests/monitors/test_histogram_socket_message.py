"""Messages of the histogram socket: what is taken, what is refused, and with which words."""

import contextlib
import json
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import monitors.histogram_message
from monitors.histogram_message import (
    MAX_MESSAGE_BYTES,
    Hello,
    MessageError,
    Window,
    encode_answer,
    encode_welcome,
    encode_window,
    parse_message,
    parse_window,
)
from parties.histogram import LAST_BUCKET, MAX_VALUE, Histogram

GOOD: dict[str, object] = {
    "version": 1,
    "service": "search",
    "client": "a",
    "sequence": 3,
    "window_start_ns": 100,
    "window_end_ns": 200,
    "scheduled": 6,
    "sent": 5,
    "completed": 3,
    "failed": 1,
    "unsent": 1,
    "outstanding": 2,
    "oldest_outstanding_ns": 50,
    "histogram": [10, 1, 20, 2],
}
LEFT_OUT = object()

counts = st.integers(0, 1 << 30)
histograms = st.dictionaries(st.integers(0, LAST_BUCKET), st.integers(1, 1 << 30), max_size=30).map(Histogram)


@st.composite
def windows(draw: st.DrawFn) -> Window:
    """Any window that keeps the rules."""
    histogram = draw(histograms)
    start_ns = draw(st.integers(0, MAX_VALUE - 1))
    outstanding = draw(counts)
    return Window(
        service=draw(st.text()),
        client=draw(st.text(min_size=1, max_size=64)),
        sequence=draw(counts),
        window_start_ns=start_ns,
        window_end_ns=draw(st.integers(start_ns + 1, MAX_VALUE)),
        scheduled=draw(counts),
        sent=draw(counts),
        completed=histogram.count,
        failed=draw(counts),
        unsent=draw(counts),
        outstanding=outstanding,
        oldest_outstanding_ns=draw(counts) if outstanding else 0,
        histogram=histogram,
    )


def encoded(**changes: object) -> bytes:
    """A good message with fields changed or left out."""
    return json.dumps({name: value for name, value in {**GOOD, **changes}.items() if value is not LEFT_OUT}).encode()


@given(windows())
def test_a_window_round_trips(window: Window) -> None:
    """Every window that can be said is read back as it was."""
    assert parse_window(encode_window(window)) == window


json_values = st.recursive(
    st.none() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([*GOOD, "hello", "x"]), inner, max_size=6),
    max_leaves=12,
)


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode) | json_values.map(lambda value: json.dumps(value).encode()))
@example(b"")
@example(b"[" * 60_000)
@example(b'{"version":' + b"9" * 6000 + b"}")
@example(b'{"version":1e999}')
@example(b"\xff\xfe{\x00}\x00")
@example(b"\xef\xbb\xbf{}")
def test_arbitrary_bytes_raise_nothing_but_a_refusal(data: bytes) -> None:
    """Whatever a sender sends, the control process gets a window or a MessageError."""
    with contextlib.suppress(MessageError):
        assert isinstance(parse_message(data), Window | Hello)


@given(
    st.sampled_from(sorted(GOOD)),
    st.none() | st.booleans() | st.floats() | st.text(max_size=3) | st.integers() | st.lists(st.integers(), max_size=3),
)
def test_a_field_of_any_value_raises_nothing_but_a_refusal(name: str, value: object) -> None:
    """One field at a time takes any JSON value; what is accepted is an integer in range or a string."""
    try:
        window = parse_window(encoded(**{name: value}))
    except MessageError:
        return
    for field in ("sequence", "scheduled", "sent", "completed", "failed", "unsent", "outstanding"):
        assert type(getattr(window, field)) is int
        assert 0 <= getattr(window, field) <= MAX_VALUE


near_misses = st.sampled_from(
    [
        None,
        True,
        False,
        1.5,
        0,
        -1,
        1,
        2,
        MAX_VALUE,
        MAX_VALUE + 1,
        "",
        "a[b",
        "true]",
        [],
        [10, 3],
        [True, 1, 20, 2],
        [1, True, 2, 2],
        [10],
    ]
)


@given(
    st.dictionaries(st.sampled_from([*GOOD, "hello", "x"]), near_misses | st.just(LEFT_OUT), max_size=3),
    st.permutations([*GOOD, "hello", "x"]),
    st.sampled_from(["", "", " ", "\n", "x"]),
)
def test_a_usual_message_is_taken_as_if_it_were_examined_field_by_field(
    changes: dict[str, object], order: list[str], behind: str
) -> None:
    """The short way takes nothing that the long one refuses, and what is refused is refused with the same words."""
    message = {**GOOD, **changes}
    data = (json.dumps({name: message[name] for name in order if message.get(name, LEFT_OUT) is not LEFT_OUT}) + behind).encode()

    def outcome(parse: Callable[[bytes], object]) -> object:
        try:
            return parse(data)
        except MessageError as error:
            return str(error)

    assert outcome(parse_message) == outcome(
        lambda data: monitors.histogram_message._examined(data, monitors.histogram_message._decoded(data))
    )


def test_defaults_are_those_of_the_document() -> None:
    """A simple client leaves out what follows from the rest."""
    optional = ("scheduled", "sent", "failed", "unsent", "outstanding", "oldest_outstanding_ns")
    window = parse_window(encoded(**dict.fromkeys(optional, LEFT_OUT)))
    assert (window.scheduled, window.sent, window.failed, window.unsent, window.outstanding) == (3, 3, 0, 0, 0)
    window = parse_window(encoded(scheduled=LEFT_OUT, sent=LEFT_OUT))
    assert (window.scheduled, window.sent) == (5, 4)
    assert parse_window(encoded(scheduled=LEFT_OUT)).scheduled == 6


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "not JSON"),
        (b"nonsense", "not JSON"),
        (b"\xff", "not JSON in UTF-8"),
        (b"[1]", "not a JSON object"),
        (encoded() + b"x", "not JSON"),
        (encoded() + encoded(), "not JSON"),
        (b'{"version":1,"version":1}', "'version' stands twice"),
        (b" " * (MAX_MESSAGE_BYTES + 1), "longer than 65536 bytes"),
        (encoded(version=2), "'version' is 2; this daemon speaks version 1"),
        (encoded(version=True), "'version' is True"),
        (encoded(version=LEFT_OUT), "'version' is None"),
        (encoded(servise="x"), "unknown field 'servise'; remove it, or correct its spelling"),
        (encoded(sequence=LEFT_OUT), "'sequence' is missing; add it"),
        (encoded(service=LEFT_OUT), "'service' is missing; add it"),
        (encoded(histogram=LEFT_OUT), "'histogram' is missing; add it"),
        (encoded(completed=LEFT_OUT), "'completed' is missing; add it"),
        (encoded(service=5), "'service' is 5; it must be a string"),
        (encoded(client=""), "'client' has 0 characters"),
        (encoded(client="x" * 65), "'client' has 65 characters"),
        (encoded(sequence=-1), "'sequence' is -1; it must be an integer from 0"),
        (encoded(sent=1.5), "'sent' is 1.5"),
        (encoded(failed=True), "'failed' is True"),
        (encoded(unsent=1 << 62), "'unsent' is 4611686018427387904"),
        (encoded(window_end_ns=100), "'window_end_ns' is 100, not after"),
        (encoded(completed=4), "'completed' is 4, and the histogram's counts add up to 3"),
        (encoded(outstanding=0), "'oldest_outstanding_ns' is 50 while 'outstanding' is 0"),
        (encoded(histogram=[20, 2, 10, 1]), "'histogram': entry 2 is bucket 10"),
        (encoded(histogram=[10, True, 20, 2]), "'histogram': an entry is true or false"),
        (encoded(histogram=[False, 1, 20, 2]), "'histogram': an entry is true or false"),
        (encoded(client="a[b", histogram=[10, True, 20, 2]), "'histogram': an entry is true or false"),
        (encoded(histogram="x"), "'histogram': must be an array"),
        (b'{"version":1,"hello":5}', "'hello' is 5"),
        (b'{"version":1,"hello":"a","x":1}', "a hello has no field 'x'"),
        (b'{"version":1,"hello":"a"}', "a hello, not a window"),
    ],
)
def test_what_breaks_the_schema_is_refused_by_name(data: bytes, what: str) -> None:
    """The sender is told what is wrong and where."""
    with pytest.raises(MessageError) as refused:
        parse_window(data)
    assert what in str(refused.value)


def test_blanks_around_a_message_are_no_fault() -> None:
    """JSON allows them."""
    assert parse_window(b" \n" + encoded() + b"\r\n\t ") == parse_window(encoded())


def test_a_long_value_is_cut_in_the_answer() -> None:
    """A refusal stays one short line of plain characters, whatever was sent."""
    with pytest.raises(MessageError) as refused:
        parse_window(encoded(service=["\n\u202e" * 1000]))
    assert len(str(refused.value)) < 200
    assert str(refused.value).isascii()
    assert "\n" not in str(refused.value)


def test_a_hello_is_told_from_a_window() -> None:
    """And the answers are JSON objects with a version."""
    assert parse_message(b'{"version":1,"hello":"a"}') == Hello("a")
    assert json.loads(encode_welcome(("b", "a"), 5, 1)) == {
        "version": 1,
        "services": ["a", "b"],
        "interval_ns": 5,
        "sub_interval_ns": 1,
    }
    assert json.loads(encode_answer("no")) == {"version": 1, "error": "no"}
