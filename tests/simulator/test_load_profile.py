"""Loads over time: values, means, jumps, files, and what is wrong with a file or a number."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.load_profile import LARGEST_LOAD, LoadError, LoadProfile, load_from, read_profile

RAMP = LoadProfile(((25.0, 0.1), (60.0, 0.6), (120.0, 0.6), (155.0, 0.1)))
JUMP = LoadProfile(((0.0, 0.2), (10.0, 0.2), (10.0, 0.8)))


@pytest.mark.parametrize(
    ("time_s", "load"), [(0, 0.1), (25, 0.1), (42.5, 0.35), (60, 0.6), (100, 0.6), (137.5, 0.35), (155, 0.1), (999, 0.1)]
)
def test_between_points_the_load_is_on_a_straight_line_and_level_outside(time_s: float, load: float) -> None:
    """Values on, between, before and after the points."""
    assert RAMP.at(time_s) == pytest.approx(load)


def test_a_jump_is_to_the_later_point() -> None:
    """Two points at one time: before it the first, from it on the second; a mean over it has its part of both."""
    assert JUMP.at(9.999) == pytest.approx(0.2)
    assert JUMP.at(10.0) == 0.8
    assert JUMP.mean(9.0, 10.0) == pytest.approx(0.2)
    assert JUMP.mean(10.0, 11.0) == pytest.approx(0.8)
    assert JUMP.mean(9.5, 10.5) == pytest.approx(0.5)


_FRACTIONS = st.floats(0.0, LARGEST_LOAD)
_POINTS = st.lists(st.tuples(st.integers(0, 40), _FRACTIONS), min_size=1, max_size=6).map(
    lambda points: LoadProfile(tuple((float(time_s), fraction) for time_s, fraction in sorted(points, key=lambda point: point[0])))
)


@given(_POINTS, st.integers(0, 50), st.integers(1, 20))
def test_the_mean_is_the_area_under_the_profile(profile: LoadProfile, start_s: int, length_s: int) -> None:
    """Against a sum over the middles of thousandths of seconds, on which a straight line's mean is exact."""
    parts = 50 * length_s
    middles = (start_s + (part + 0.5) / 50 for part in range(parts))
    assert profile.mean(start_s, start_s + length_s) == pytest.approx(sum(map(profile.at, middles)) / parts, abs=1e-9)


def test_constant_profiles_say_so() -> None:
    """One value throughout, however many points have it."""
    assert LoadProfile.steady(0.4).constant
    assert LoadProfile(((0.0, 0.4), (9.0, 0.4))).constant
    assert not RAMP.constant


@pytest.mark.parametrize(
    ("points", "says"),
    [
        ((), "no points"),
        (((5.0, 0.1), (4.0, 0.2)), "ascend"),
        (((-1.0, 0.1),), "ascend"),
        (((float("nan"), 0.1),), "ascend"),
        (((0.0, 1.6),), "load 1.6 is not between 0 and 1.5"),
        (((0.0, -0.1),), "not between"),
        (((0.0, float("nan")),), "not between"),
    ],
)
def test_points_that_are_no_profile_are_refused(points: tuple[tuple[float, float], ...], says: str) -> None:
    """Each kind of mistake has its message."""
    with pytest.raises(LoadError, match=says):
        LoadProfile(points)


def test_a_profile_file_has_a_time_and_a_fraction_on_each_line(tmp_path: Path) -> None:
    """Blanks or a comma between the two, comments and empty lines anywhere."""
    file = tmp_path / "ramp.txt"
    file.write_text("# time load\n0 0.1\n\n25,0.1  # begins\n60\t0.6\n")
    assert read_profile(file) == LoadProfile(((0.0, 0.1), (25.0, 0.1), (60.0, 0.6)))
    assert load_from("ramp.txt", folder=tmp_path) == read_profile(file)
    assert load_from("0.4") == LoadProfile.steady(0.4)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0 0.1\n25 fast\n", "ramp.txt:2: '25 fast' is not a time in seconds and a fraction"),
        ("0 0.1 0.2\n", "ramp.txt:1:"),
        ("0 0.1\n10 40\n", "ramp.txt:2: load 40 is not between 0 and 1.5; .* 0.4 for 40 %"),
        ("10 0.1\n5 0.1\n", "ramp.txt: .*ascend"),
        ("# nothing\n", "ramp.txt: .*no points"),
    ],
)
def test_a_mistake_in_a_profile_file_names_file_and_line(text: str, says: str, tmp_path: Path) -> None:
    """What, where, and what to do."""
    file = tmp_path / "ramp.txt"
    file.write_text(text)
    with pytest.raises(LoadError, match=says):
        read_profile(file)


def test_a_load_that_is_neither_number_nor_file_says_what_it_could_be(tmp_path: Path) -> None:
    """A missing file and one that is no text are told in one message each."""
    with pytest.raises(LoadError, match=r"load profile .*absent.txt cannot be read: No such file.* such as 0.4"):
        load_from("absent.txt", folder=tmp_path)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(LoadError, match="not a text in UTF-8"):
        load_from("bytes", folder=tmp_path)
    with pytest.raises(LoadError, match=r"load 2 is not between"):
        load_from("2")
