"""Packing and parsing of rtnetlink messages, on bytes that a kernel (6.18, x86-64) sent."""

from __future__ import annotations

import errno
import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actuators.network import tc
from actuators.network.classify import group_program
from actuators.network.netlink import NetlinkError, attribute, attributes, find_attribute, message, messages, raise_refusal
from actuators.network.tc import ClassState, HtbClass, Qdisc

pytestmark = pytest.mark.skipif(sys.byteorder != "little", reason="the captured messages are of a little-endian machine")

OURS = 0x70610000

FAST_CLASS = bytes.fromhex(
    "04010000280000000400000079400000000000000100000010006170010061700000000008000100687462004c00020030000100"
    "0001000000000000ffffffff0001000000000000ffffffff24f4000024f4000060ea000000000000000000000c00060000f2052a010000000c000700"
    "00f2052a0100000048000700140001000000000000000000000000000000000018000300000000000000000000000000000000000000000018000400"
    "00000000000000000000000024f4000024f400002c000300000000000000000000000000000000000000000000000000000000000000000000000000"
    "000000001800040000000000000000000000000024f4000024f40000"
)
TOP_CLASS = bytes.fromhex(
    "ec000000280000000500000079400000000000000100000001006170ffffffff00000000080001006874620034000200300001000001000000000000"
    "4059730700010000000000004059730724f4000024f4000060ea0000070000000000000048000700140001000000000000000000000000000000"
    "000018000300000000000000000000000000000000000000000018000400000000000000000000000000"
    "24f4000024f400002c0003000000000000000000000000000000000000000000000000000000000000000000000000000000"
    "00001800040000000000000000000000000024f4000024f40000"
)
IN_USE = bytes.fromhex(
    "3c000000020000030600000079400000f0ffffff240000002900050006000000000000001500010048544220636c61737320696e2075736500000000"
)
ACKNOWLEDGED = bytes.fromhex("240000000200000107000000794000000000000078000000280005000700000000000000")
NO_SUCH_CLASS = bytes.fromhex("24000000020000010800000079400000feffffff240000002a000d000800000000000000")
QDISC_DUMP = bytes.fromhex(
    "b4000000240002000900000079400000000000000100000000006170ffffffff0200000008000100687462002400020018000200110003000a000000"
    "03000000000000000000000008000500e803000005000c00000000003000070014000100000000000000000000000000000000001800030000000000"
    "00000000000000000000000000000000"
    "2c00030000000000000000000000000000000000000000000000000000000000000000000000000000000000"
    "1400000003000200090000007940000000000000"
)


def only(data: bytes) -> tuple[int, int, int, bytes]:
    (found,) = messages(data)
    return found


def test_a_class_above_four_gigabytes_per_second_is_read_by_its_64_bit_rate() -> None:
    """The 32-bit field is full; the attribute beside it has the rate."""
    assert tc.unpack_class(only(FAST_CLASS)[3]) == (
        OURS | 0x10,
        ClassState(HtbClass(OURS | 1, 5_000_000_000, 5_000_000_000, 62_500, 62_500, 60_000, 0), 0),
    )


def test_a_class_right_below_the_qdisc_has_the_qdisc_as_its_parent() -> None:
    """The kernel says "root"; what is compared with what was written says 7061:."""
    found = tc.unpack_class(only(TOP_CLASS)[3])
    assert found is not None
    assert found[1].settings == HtbClass(OURS, 125_000_000, 125_000_000, 62_500, 62_500, 60_000, 0)


def test_the_bytes_sent_are_the_first_counter() -> None:
    """Eight bytes, beyond what 32 bits hold."""
    counted = bytearray(FAST_CLASS)
    at = FAST_CLASS.index(bytes.fromhex("48000700")) + 8
    counted[at : at + 8] = struct.pack("=Q", 7_000_000_000_001)
    found = tc.unpack_class(only(bytes(counted))[3])
    assert found is not None
    assert found[1].sent_bytes == 7_000_000_000_001


def test_counters_alone_do_not_make_another_class() -> None:
    """What was taken apart once is remembered by everything but the counters: other settings are other ones, at once."""
    body = only(FAST_CLASS)[3]
    first, again = tc.unpack_class(body), tc.unpack_class(bytes(bytearray(body)))
    assert first is not None
    assert again is not None
    assert first[1].settings is again[1].settings
    at = body.index(struct.pack("=I", 60_000))
    other = tc.unpack_class(body[:at] + struct.pack("=I", 61_000) + body[at + 4 :])
    assert other is not None
    assert other[1].settings.quantum_bytes == 61_000
    assert other[1].sent_bytes == first[1].sent_bytes


@given(st.dictionaries(st.integers(1, 9), st.binary(max_size=12), max_size=5), st.integers(1, 9), st.integers(0, 40))
def test_an_attribute_is_found_where_all_are_listed(found: dict[int, bytes], wanted: int, cut: int) -> None:
    """The same payload, or none, also in a message that was torn."""
    data = b"".join(attribute(kind, payload) for kind, payload in found.items())
    data = data[: max(0, len(data) - cut)]
    begin, end = find_attribute(data, wanted, 0, len(data))
    listed = attributes(data).get(wanted)
    assert data[begin:end] == (listed or b"")
    assert (begin == end == len(data)) or listed is not None


def test_a_class_of_another_discipline_is_left_out() -> None:
    """Somebody's drr class is none of ours."""
    assert tc.unpack_class(only(FAST_CLASS.replace(b"htb\0", b"drr\0"))[3]) is None


def test_a_qdisc_in_a_dump_and_the_end_of_the_dump_are_told_apart() -> None:
    """Two messages in one receive: the qdisc, and "done"."""
    (kind, _flags, sequence, body), (end, *_rest) = messages(QDISC_DUMP)
    assert (kind, sequence, end) == (tc.RTM_NEWQDISC, 9, 3)
    assert tc.unpack_qdisc(body) == Qdisc("htb", OURS, tc.TC_H_ROOT, OURS | 3)


@given(
    rate=st.integers(1, 2**40),
    ceil=st.integers(1, 2**40),
    buffer=st.integers(0, 2**32 - 1),
    priority=st.integers(0, 7),
    parent=st.integers(1, 0xFFFE),
)
def test_what_is_packed_is_what_is_unpacked(rate: int, ceil: int, buffer: int, priority: int, parent: int) -> None:
    """Every class survives the way to the kernel's form and back, and the way to text and back."""
    settings = HtbClass(OURS | parent, rate, ceil, buffer, buffer, 60_000, priority)
    body = struct.pack("=BxxxiIII", 0, 1, OURS | 0x10, settings.parent, 0) + tc.pack_class(settings)
    assert tc.unpack_class(body) == (OURS | 0x10, ClassState(settings, 0))
    assert HtbClass.parse(settings.text()) == settings


def test_the_packed_class_has_the_layout_that_the_kernel_answers_with() -> None:
    """Kind, and in the options the parameters with both 64-bit rates, byte for byte but for the level and padding."""
    packed = tc.pack_class(HtbClass(OURS | 1, 5_000_000_000, 5_000_000_000, 62_500, 62_500, 60_000, 0))
    start = FAST_CLASS.index(bytes.fromhex("08000100"))
    assert packed == FAST_CLASS[start : start + len(packed)]


def test_the_link_selectors_are_those_of_tc() -> None:
    """As ``offset at 0 mask 0f00 shift 6`` and ``offset plus 40``, with protocol and fragment compared in network byte order."""
    ipv4 = tc._link_selector(tc.ETH_P_IP, 6)
    assert ipv4 == bytes.fromhex("04060200 0f00 0000 0000 0000 00000000 00ff0000 00060000 08000000 00000000") + bytes.fromhex(
        "00001fff 00000000 04000000 00000000"
    )
    ipv6 = tc._link_selector(tc.ETH_P_IPV6, 17)
    assert ipv6 == bytes.fromhex("02000100 0000 2800 0000 0000 00000000 0000ff00 00001100 04000000 00000000")


def test_the_bpf_program_compares_both_halves_of_the_group_id() -> None:
    """Ids have 64 bits; the upper half is the generation of a reused inode."""
    low, high = 0xFFFFFFFE, 0x80000001
    code = group_program(2, high << 32 | low)
    assert len(code) == 9 * 8
    words = [struct.unpack_from("=BBhi", code, at) for at in range(0, len(code), 8)]
    assert words[0] == (0xB7, 2, 0, 2)
    assert words[2][3] & 0xFFFFFFFF == low
    assert words[3][3] & 0xFFFFFFFF == high


def test_a_refusal_carries_the_kernels_words() -> None:
    """Extended acknowledgement: EBUSY because the class is in use."""
    _kind, flags, _sequence, body = only(IN_USE)
    with pytest.raises(NetlinkError, match="HTB class in use") as caught:
        raise_refusal(flags, body)
    assert caught.value.errno == errno.EBUSY


def test_a_refusal_without_words_has_the_names_of_the_error() -> None:
    """ENOENT alone."""
    _kind, flags, _sequence, body = only(NO_SUCH_CLASS)
    with pytest.raises(NetlinkError, match=r"No such file or directory$") as caught:
        raise_refusal(flags, body)
    assert caught.value.errno == errno.ENOENT


def test_an_old_kernels_refusal_repeats_the_request_before_its_words() -> None:
    """Without the capped flag the attributes come after a copy of the whole request."""
    request = message(tc.RTM_DELTCLASS, 0, 1, b"x" * 21)
    body = struct.pack("=i", -errno.EBUSY) + request + bytes(3) + attribute(1, b"in use\0")
    with pytest.raises(NetlinkError, match=r"in use$"):
        raise_refusal(0x200, body)


def test_an_acknowledgement_is_no_error() -> None:
    """Code 0."""
    _kind, flags, _sequence, body = only(ACKNOWLEDGED)
    raise_refusal(flags, body)


@given(st.binary(max_size=200))
def test_torn_messages_and_attributes_end_quietly(data: bytes) -> None:
    """Whatever arrives: no endless loop, no exception, nothing beyond the end."""
    assert all(len(body) <= len(data) for *_head, body in messages(data))
    assert all(len(value) <= len(data) for value in attributes(data).values())


def test_handles_are_written_as_tc_writes_them() -> None:
    """Hexadecimal, a qdisc with nothing after the colon."""
    assert [tc.handle_text(handle) for handle in (OURS, OURS | 0x1F)] == ["7061:", "7061:1f"]
    assert [tc.parse_handle(text) for text in ("7061:", "7061:1f")] == [OURS, OURS | 0x1F]


@pytest.mark.parametrize("text", ["", "rate 1", "parent 7061:1 rate x ceil 1 buffer 1 cbuffer 1 quantum 1 prio 0", "rate 1 rate"])
def test_text_that_is_no_class_is_refused(text: str) -> None:
    """A damaged journal must not become a class."""
    with pytest.raises(ValueError):  # noqa: PT011 (what is wrong with the text differs)
        HtbClass.parse(text)
