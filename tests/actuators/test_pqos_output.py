from pathlib import Path

import pytest

from actuators.cache.pqos_output import PqosAbilities, PqosCpu, PqosState, parse_abilities, parse_state
from actuators.cache.resctrl import Mask

CAPTURED = Path(__file__).parent / "pqos"
XEON = """\
NOTE:  Mixed use of MSR and kernel interfaces to manage
       CAT or CMT & MBM may lead to unexpected behavior.
L3CA/MBA COS definitions for Socket 0:
    L3CA COS0 => MASK 0x7ff
    L3CA COS1 => MASK 0xf0
    MBA COS0 => 100% available
L2CA COS definitions for L2ID 0:
    L2CA COS0 => MASK 0xff
Core information for socket 0:
    Core 0, L2ID 16, L3ID 0 => COS1, RMID0
    Core 2, L2ID 4, L3ID 0 => COS0, RMID12
"""
MANY_CACHES = """\
L3CA CLOS definitions for Socket 4:
    L3CA CLOS0 => MASK 0xffff
L3CA CLOS definitions for Socket 12:
    L3CA CLOS0 => MASK 0xffff
Core information for socket 0:
    Core 0, L2ID 0, L3ID 4 => CLOS0
    Core 1, L2ID 1, L3ID 12 => CLOS0
"""


def both(mask: int) -> Mask:
    return Mask(mask, mask)


@pytest.mark.parametrize(
    ("text", "masks", "cpus", "units"),
    [
        (XEON, {(0, 0): both(0x7FF), (0, 1): both(0xF0)}, {0: PqosCpu(0, 0, 1), 2: PqosCpu(0, 0, 0)}, {0: 0}),
        (
            MANY_CACHES,
            {(4, 0): both(0xFFFF), (12, 0): both(0xFFFF)},
            {0: PqosCpu(0, 4, 0), 1: PqosCpu(0, 12, 0)},
            {4: 4, 12: 12},
        ),
    ],
)
def test_what_is_in_force(text: str, masks: dict[tuple[int, int], Mask], cpus: dict[int, PqosCpu], units: dict[int, int]) -> None:
    """Masks, cores and units of a Xeon under the MSR interface and of a processor with several L3s to a socket."""
    state = parse_state(text)
    assert state == PqosState(masks, cpus)
    assert state.units() == units


def test_captured_with_memory_bandwidth() -> None:
    """Captured from pqos 4.5: the lines of memory bandwidth are passed over."""
    state = parse_state((CAPTURED / "mba-s.txt").read_text())
    assert len(state.masks) == 8
    assert state.masks[1, 1] == both(0x7)
    assert state.cpus[3] == PqosCpu(1, 1, 1)
    assert state.units() == {0: 0, 1: 1}


def test_captured_with_code_and_data_apart() -> None:
    """Captured from pqos 4.5 under CDP: data stands before code."""
    assert parse_state((CAPTURED / "cdp-s.txt").read_text()).masks[1, 1] == Mask(code=0x7, data=0x38)


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("", "mask"),
        ("L3CA COS definitions for Socket 0:\n    L3CA COS0 => ERROR\n", "mask"),
        (XEON.partition("Core information")[0], "class of a core"),
    ],
)
def test_what_shows_nothing_is_refused(text: str, missing: str) -> None:
    """An output without masks or cores is an error, not a machine without any."""
    with pytest.raises(ValueError, match=missing):
        parse_state(text)


def test_a_mask_that_cannot_be_read_is_left_out() -> None:
    """ERROR in place of one mask loses that mask alone."""
    state = parse_state(XEON.replace("MASK 0xf0", "ERROR"))
    assert set(state.masks) == {(0, 0)}


def test_units_that_match_nothing_are_refused() -> None:
    """Two L3s in a socket that has one mask cannot be told apart."""
    state = parse_state(XEON.replace("L2ID 4, L3ID 0", "L2ID 4, L3ID 1"))
    with pytest.raises(ValueError, match="L3 caches"):
        state.units()


@pytest.mark.parametrize(
    ("name", "found"),
    [("mba-D.txt", PqosAbilities(4, 11, 0x600, 2)), ("cdp-D.txt", PqosAbilities(2, 11, 0, None))],
)
def test_what_the_hardware_can(name: str, found: PqosAbilities) -> None:
    """Captured from pqos 4.5: classes, ways, those shared with devices, and the least, which it may not know."""
    assert parse_abilities((CAPTURED / name).read_text()) == found


def test_no_allocation_is_refused() -> None:
    """Classes of the memory bandwidth are not taken for the L3's."""
    text = (CAPTURED / "mba-D.txt").read_text().replace("L3 CAT", "L2 CAT")
    with pytest.raises(ValueError, match="no allocation"):
        parse_abilities(text)
    with pytest.raises(ValueError, match="no allocation"):
        parse_abilities("            L3 CAT\n        Memory Bandwidth Allocation (MBA)\n            Num COS: 8\n")
