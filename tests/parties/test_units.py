"""Quantities are read and printed exactly, and what cannot be read is explained."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parties.units import (
    BIT_RATE,
    BYTE_RATE,
    DURATION,
    FREQUENCY,
    MILLICORES,
    SIZE,
    WAYS,
    Quantity,
    UnitError,
    format_cpu_list,
    parse_cpu_list,
)

ALL = (DURATION, SIZE, BYTE_RATE, BIT_RATE, FREQUENCY, MILLICORES, WAYS)


@pytest.mark.parametrize(
    ("quantity", "text", "value"),
    [
        (DURATION, "500ms", 500_000_000),
        (DURATION, "600us", 600_000),
        (DURATION, "600µs", 600_000),
        (DURATION, " 1.5 s ", 1_500_000_000),
        (DURATION, "2min", 120_000_000_000),
        (SIZE, "1GiB", 1 << 30),
        (SIZE, "512MiB", 512 << 20),
        (SIZE, "4GB", 4_000_000_000),
        (SIZE, "0.5KiB", 512),
        (BYTE_RATE, "100MB/s", 100_000_000),
        (BYTE_RATE, "1GiB/s", 1 << 30),
        (BIT_RATE, "1Gbit/s", 1_000_000_000),
        (BIT_RATE, "0.5Gbit/s", 500_000_000),
        (FREQUENCY, "2.2GHz", 2_200_000_000),
        (MILLICORES, "250m", 250),
        (MILLICORES, "0.25 cores", 250),
        (MILLICORES, "2 cores", 2000),
        (MILLICORES, "1 core", 1000),
        (WAYS, "3 ways", 3),
    ],
)
def test_reads_what_people_write(quantity: Quantity, text: str, value: int) -> None:
    """Each form of the documentation gives the exact integer in base units."""
    assert quantity.parse(text) == value


@pytest.mark.parametrize(
    ("quantity", "value", "text"),
    [
        (DURATION, 500_000_000, "500ms"),
        (DURATION, 600_000, "600us"),
        (DURATION, 1_500_000_000, "1.5s"),
        (DURATION, 0, "0ns"),
        (DURATION, 1, "1ns"),
        (SIZE, 1 << 30, "1GiB"),
        (SIZE, 4_000_000_000, "4GB"),
        (SIZE, 1000, "1kB"),
        (MILLICORES, 100, "100m"),
        (MILLICORES, 1000, "1 core"),
        (MILLICORES, 1500, "1.5 cores"),
        (FREQUENCY, 2_200_000_000, "2.2GHz"),
        (WAYS, 1, "1 way"),
    ],
)
def test_prints_what_people_write(quantity: Quantity, value: int, text: str) -> None:
    """Printing picks the unit that a person would."""
    assert quantity.format(value) == text


@given(quantity=st.sampled_from(ALL), value=st.integers(0, 2**63 - 1))
def test_printing_and_reading_agree(quantity: Quantity, value: int) -> None:
    """Whatever is printed reads back as the same integer."""
    assert quantity.parse(quantity.format(value), zero=True) == value


@given(quantity=st.sampled_from(ALL), count=st.integers(1, 2000), data=st.data())
def test_every_unit_is_read_exactly(quantity: Quantity, count: int, data: st.DataObject) -> None:
    """A whole number of any accepted unit is that many times the unit."""
    unit = data.draw(st.sampled_from(sorted(quantity.units)))
    assert quantity.parse(f"{count}{unit}") == count * quantity.units[unit]


@given(quantity=st.sampled_from(ALL), text=st.text(max_size=40))
def test_any_text_is_read_or_explained(quantity: Quantity, text: str) -> None:
    """No text leads to another exception, and each explanation holds an example that works."""
    explanation = quantity.example
    try:
        quantity.parse(text)
    except UnitError as error:
        explanation = str(error)
    assert quantity.example in explanation or "did you mean" in explanation
    assert quantity.parse(quantity.example) > 0


@pytest.mark.parametrize(
    ("quantity", "found", "message"),
    [
        (DURATION, 10, '10 has no unit; say "500ms" (accepted units: ns, us, µs, ms, s, min, h)'),
        (DURATION, "10", '"10" has no unit; say "500ms" (accepted units: ns, us, µs, ms, s, min, h)'),
        (DURATION, 2.5, '2.5 has no unit; say "500ms" (accepted units: ns, us, µs, ms, s, min, h)'),
        (DURATION, "10GB", '"10GB": \'GB\' is no unit of a duration; say "500ms" (accepted units: ns, us, µs, ms, s, min, h)'),
        (
            DURATION,
            "10MS",
            "\"10MS\": 'MS' is no unit of a duration; did you mean 'ms'? (accepted units: ns, us, µs, ms, s, min, h)",
        ),
        (DURATION, "0ms", '"0ms": a duration must be more than zero; say "500ms"'),
        (DURATION, "-3s", '"-3s": a duration must be more than zero; say "500ms"'),
        (DURATION, "0.5ns", '"0.5ns" is not a whole number of nanoseconds; say "500ms"'),
        (DURATION, "soon", 'cannot read "soon" as a duration; say "500ms" (accepted units: ns, us, µs, ms, s, min, h)'),
        (DURATION, True, 'true is not a duration; say "500ms" (accepted units: ns, us, µs, ms, s, min, h)'),
        (DURATION, "", 'cannot read "" as a duration; say "500ms" (accepted units: ns, us, µs, ms, s, min, h)'),
        (DURATION, "9" * 25 + "s", f'"{"9" * 25}s" is too large for a duration; say "500ms"'),
        (MILLICORES, 2, '2 has no unit; say "0.25 cores" (accepted units: m, core, cores)'),
    ],
)
def test_explains_what_it_cannot_read(quantity: Quantity, found: object, message: str) -> None:
    """The message says what was read, what is wrong with it, what is accepted, and an example."""
    with pytest.raises(UnitError, match=f"^{re.escape(message)}$"):
        quantity.parse(found)


def test_zero_only_where_it_makes_sense() -> None:
    """Zero is an amount only for who asks for it; less than zero never is."""
    assert DURATION.parse("0s", zero=True) == 0
    with pytest.raises(UnitError, match="must not be negative"):
        DURATION.parse("-1s", zero=True)


@given(st.sets(st.integers(0, 8191), max_size=50))
def test_cpu_lists_print_and_read_back(cpus: set[int]) -> None:
    """A CPU list that was printed reads back as the same CPUs, ascending."""
    assert parse_cpu_list(format_cpu_list(cpus)) == tuple(sorted(cpus))


def test_cpu_lists_are_the_kernels() -> None:
    """Ranges and single CPUs mix, blanks do not matter, overlap is no error, and nothing is an empty list."""
    assert parse_cpu_list("0-3,8") == (0, 1, 2, 3, 8)
    assert parse_cpu_list(" 8, 0-1 ,1 ") == (0, 1, 8)
    assert parse_cpu_list("") == ()
    assert format_cpu_list((8, 0, 1, 2, 3)) == "0-3,8"


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ("3-1", '"3-1" in the CPU list "3-1" runs backwards; say "1-3"'),
        ("0,x", 'cannot read "x" in the CPU list "0,x"; say "0-3,8" or ""'),
        ("0,,1", 'cannot read "" in the CPU list "0,,1"; say "0-3,8" or ""'),
        ("0-8192", '"0-8192" in the CPU list "0-8192": the largest CPU number is 8191'),
        (3, 'a CPU list is written as a text, not 3; say "0-3,8"'),
    ],
)
def test_explains_bad_cpu_lists(found: object, message: str) -> None:
    """A CPU list that cannot be read names the part at fault."""
    with pytest.raises(UnitError, match=f"^{re.escape(message)}$"):
        parse_cpu_list(found)
