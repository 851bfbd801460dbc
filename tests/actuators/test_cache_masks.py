"""Way masks: the layout of a domain's ways, and an order of writes in which no two holders ever share an exclusive way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actuators.cache.masks import LayoutError, MaskChange, MaskStep, WayLayout, longest_run, mask_steps, way_layout
from parties.knob import Effect
from parties.model import RESERVED

TWENTY = (1 << 20) - 1
NAMES = ("a", "b", "c", "d", "best-effort")


@pytest.mark.parametrize(
    ("ways", "reserved", "region"),
    [
        ({"full": TWENTY, "least": 1}, 0x80000, 0x7FFFF),
        ({"full": TWENTY, "least": 2}, 0xC0000, 0x3FFFF),
        ({"full": TWENTY, "least": 2, "shareable": 0xC0000}, 0xC0000, 0x3FFFF),
        ({"full": TWENTY, "least": 2, "shareable": 0x3}, 0x3, 0xFFFFC),
        ({"full": TWENTY, "least": 2, "shareable": 0x80000}, 0xC0000, 0x3FFFF),
        ({"full": TWENTY, "least": 1, "shareable": 0xC0000, "reserved_ways": 4}, 0xF0000, 0xFFFF),
        ({"full": TWENTY, "least": 1, "shareable": 0xC0000, "reserved_ways": 1}, 0x80000, 0x3FFFF),
        ({"full": TWENTY, "least": 1, "reserved_ways": 3}, 0xE0000, 0x1FFFF),
        ({"full": TWENTY, "least": 1, "shareable": 0x600}, 0x600, 0x1FF),
        ({"full": 0x7FF, "least": 1, "taken": 0x3}, 0x400, 0x3FC),
        ({"full": 0x7FF, "least": 1, "taken": 0x600}, 0x100, 0xFF),
    ],
)
def test_where_ways_lie(ways: dict[str, int], reserved: int, region: int) -> None:
    """Reserved ways cover what devices share, else lie at the top; holders get the longest run of the rest, the lower of two."""
    layout = way_layout(**ways)
    assert (layout.reserved, layout.region, layout.ways) == (reserved, region, region.bit_count())


@pytest.mark.parametrize(
    ("ways", "words"),
    [
        ({"full": 0, "least": 1}, "makes no sense"),
        ({"full": 0x7FF, "least": 0}, "makes no sense"),
        ({"full": 0x7FF, "least": 2, "reserved_ways": 1}, "takes no mask under 2"),
        ({"full": 0x7FF, "least": 1, "reserved_ways": 11}, "reserve fewer"),
        ({"full": 0x7FF, "least": 1, "reserved_ways": 12}, "reserve fewer"),
        ({"full": 0x7, "least": 2}, "reserve fewer"),
        ({"full": 0x7FF, "least": 1, "taken": 0x7FF}, "11 held exclusively by others"),
    ],
)
def test_ways_that_cannot_be_divided(ways: dict[str, int], words: str) -> None:
    """The reason says what is wrong and what to do."""
    with pytest.raises(LayoutError, match=words):
        way_layout(**ways)


def test_a_placement_in_the_hardware_s_numbering() -> None:
    """Shifted into the region; what is too narrow for a mask lives in the reserved ways, and reads back as nothing."""
    layout = way_layout(TWENTY, least=2, shareable=0x3)
    assert [layout.physical(mask) for mask in (0b11, 0b1100, 0b1, 0)] == [0b1100, 0b110000, 0x3, 0x3]
    assert [layout.logical(mask) for mask in (0b1100, 0x3, TWENTY)] == [0b11, 0, (1 << 18) - 1]


def test_the_longest_run() -> None:
    """The lowest of equally long ones; none of nothing."""
    assert [longest_run(mask) for mask in (0, 0b1, 0b1011, 0b1101110111, 0b11011)] == [0, 1, 0b11, 0b111, 0b11]


def test_a_mask_that_loses_and_gains_is_narrowed_first() -> None:
    """Sliding two neighbours by one way: both narrowed, then both widened."""
    layout = WayLayout(TWENTY, 0x80000, 0x7FFFF, 1)
    steps = mask_steps([MaskChange("a", 0b0111, 0b1110), MaskChange("b", 0b111000, 0b110000)], layout)
    assert steps == [("a", 0b0110, Effect.TAKE), ("b", 0b110000, Effect.TAKE), ("a", 0b1110, Effect.GIVE)]


def test_masks_that_change_places() -> None:
    """A circle is opened by way of the reserved ways; a mere jump takes one write, in the order in which ways become free."""
    layout = WayLayout(TWENTY, 0xC0000, 0x3FFFF, 2)
    circle = mask_steps([MaskChange("a", 0b11, 0b1100), MaskChange("b", 0b1100, 0b11)], layout)
    assert circle == [("a", 0xC0000, Effect.TAKE), ("b", 0b11, Effect.NEUTRAL), ("a", 0b1100, Effect.GIVE)]
    chain = mask_steps([MaskChange("a", 0b11, 0b1100), MaskChange("b", 0b1100, 0b110000)], layout)
    assert chain == [("b", 0b110000, Effect.NEUTRAL), ("a", 0b1100, Effect.NEUTRAL)]


def test_what_holds_already_is_not_written() -> None:
    """No write for a mask that stays."""
    assert mask_steps([MaskChange("a", 0b11, 0b11)], way_layout(TWENTY, least=1)) == []


@st.composite
def layouts(draw: st.DrawFn) -> WayLayout:
    """Domains of every shape that can be divided."""
    width, least = draw(st.integers(8, 32)), draw(st.integers(1, 2))
    shareable = draw(st.sampled_from((0, 0b11 << width - 2, 0b11, 1 << width - 1)))
    return way_layout((1 << width) - 1, least=least, shareable=shareable, reserved_ways=draw(st.sampled_from((0, 2, 3))))


@st.composite
def placements(draw: st.DrawFn, layout: WayLayout) -> dict[str, int]:
    """Disjoint hardware masks of all holders, in any order, some of them in the reserved ways."""
    masks, way = {}, 0
    for name in draw(st.permutations(NAMES)):
        way += draw(st.integers(0, 2))
        size = draw(st.integers(0, 5))
        fits = way + size <= layout.ways
        masks[name] = layout.physical(((1 << size) - 1) << way if fits else 0)
        way += size if fits else 0
    return {**masks, RESERVED: layout.reserved}


def shared_pairs(masks: dict[str, int], layout: WayLayout) -> set[tuple[str, str]]:
    """The pairs of holders that share an exclusive way."""
    return {(a, b) for a in masks for b in masks if a < b and masks[a] & masks[b] & layout.exclusive}


def contiguous(mask: int, least: int) -> bool:
    """Whether the hardware takes it."""
    return mask == longest_run(mask) and mask.bit_count() >= least


def carried_out(steps: list[MaskStep], masks: dict[str, int]) -> list[dict[str, int]]:
    """The masks after each write."""
    states = []
    for step in steps:
        masks = {**masks, step.holder: step.mask}
        states.append(masks)
    return states


@given(st.data())
def test_no_two_holders_ever_share_an_exclusive_way(data: st.DataObject) -> None:
    """From any placement to any other, between any two writes, forward and back; every mask is one that the hardware takes."""
    layout = data.draw(layouts())
    old, new = data.draw(placements(layout)), data.draw(placements(layout))
    steps = mask_steps([MaskChange(name, old[name], new[name]) for name in old], layout)
    states = carried_out(steps, old)
    assert (states or [old])[-1] == new
    assert all(not shared_pairs(state, layout) for state in states)
    assert all(contiguous(step.mask, layout.least) for step in steps)


@given(st.data())
def test_take_before_give(data: st.DataObject) -> None:
    """A write that takes leaves nothing new with its holder, one that gives loses nothing; nobody gains before all have lost."""
    layout = data.draw(layouts())
    old, new = data.draw(placements(layout)), data.draw(placements(layout))
    steps = mask_steps([MaskChange(name, old[name], new[name]) for name in old], layout)
    assert [step.effect for step in steps] == sorted(step.effect for step in steps)
    for step, before in zip(steps, [old, *carried_out(steps, old)], strict=False):
        had, has = before[step.holder] & layout.exclusive, step.mask & layout.exclusive
        assert not (step.effect is Effect.TAKE and has & ~had)
        assert not (step.effect is Effect.GIVE and had & ~has)


@given(st.data())
def test_from_foreign_masks_sharing_never_grows(data: st.DataObject) -> None:
    """At a start every group may have every way: no write makes two holders share that did not before, and at the end none do."""
    layout = data.draw(layouts())
    new = data.draw(placements(layout))
    some_run = st.tuples(st.integers(0, 12), st.integers(1, 8)).map(lambda run: ((1 << run[1]) - 1 << run[0]) & layout.full)
    old = {name: data.draw(some_run | st.sampled_from((layout.full, layout.reserved, mask))) for name, mask in new.items()}
    before = old
    for state in carried_out(mask_steps([MaskChange(name, old[name], new[name]) for name in old], layout), old):
        assert shared_pairs(state, layout) <= shared_pairs(before, layout)
        before = state
    assert before == new
