"""The resctrl file system, read: machines of every shape, groups of others, and trees that are none."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from resctrl_trees import EPYC, HASWELL, ODD_IDS, XEON, XEON_CDP, TreeOptions, add_files, add_group, make_tree

from actuators.cache.resctrl import (
    Mask,
    ResctrlError,
    cache_masks,
    format_schemata,
    parse_schemata,
    read_tree,
    who_holds,
)


@pytest.mark.parametrize(
    ("text", "masks"),
    [
        ("L3:0=fffff\n", {0: Mask(0xFFFFF, 0xFFFFF)}),
        ("    MB:0=100;1=90\n    L3:0=7ff;1=00f\n", {0: Mask(0x7FF, 0x7FF), 1: Mask(0xF, 0xF)}),
        ("L3DATA:3=ff;7=f0\nL3CODE:3=ff;7=0f\n", {3: Mask(0xFF, 0xFF), 7: Mask(0xF, 0xF0)}),
        ("    L2:0=ff;1=ff\n    L3:0=3\n  SMBA:0=2048\n", {0: Mask(3, 3)}),
    ],
)
def test_schemata_as_kernels_print_them(text: str, masks: dict[int, Mask]) -> None:
    """Padding, other resources, several domains, code and data."""
    assert cache_masks(parse_schemata(text)) == masks


@pytest.mark.parametrize(
    "text", ["", "MB:0=100\n", "L3\n", "L3:0\n", "L3:0=xyz\n", "L3:a=ff\n", "L3CODE:0=f\n", "L3CODE:0=f\nL3DATA:1=f\n"]
)
def test_schemata_that_are_none(text: str) -> None:
    """Always the same error, which the reader turns into words."""
    with pytest.raises(ValueError, match=r".+"):
        cache_masks(parse_schemata(text))


@given(
    st.dictionaries(
        st.sampled_from(("L3", "L2", "MB")),
        st.dictionaries(st.integers(0, 300), st.integers(1, 1 << 20).map(lambda mask: f"{mask:x}"), min_size=1),
        min_size=1,
    )
)
def test_what_is_formatted_parses_back(schemata: dict[str, dict[int, str]]) -> None:
    """Several resources and domains with any ids."""
    assert parse_schemata(format_schemata(schemata)) == schemata


@given(st.integers(1, 1 << 32), st.integers(1, 1 << 32))
def test_a_mask_is_one_value(code: int, data: int) -> None:
    """Alike or apart, its text gives it back."""
    assert Mask.parse(str(Mask(code, data))) == (code, data)
    assert ("/" in str(Mask(code, data))) == (code != data)


@pytest.mark.parametrize(
    ("options", "closids"), [(XEON, 16), (XEON_CDP, 8), (ODD_IDS, 16), (EPYC, 16), (HASWELL, 4), (TreeOptions(closids=20), 20)]
)
def test_machines_of_every_shape(tmp_path: Path, options: TreeOptions, closids: int) -> None:
    """What the hardware can, and the root group's masks by the ids that there are."""
    tree = read_tree(make_tree(tmp_path, options))
    assert (tree.cache.full, tree.cache.least, tree.cache.shareable) == (options.full, options.min_cbm_bits, options.shareable)
    assert (tree.cache.lines, tree.cache.closids) == (options.lines, closids)
    assert tree.masks == dict.fromkeys(options.domains, Mask(options.full, options.full))
    assert (tree.own, tree.foreign) == ((), ())


def test_the_scarcest_resource_limits_the_groups(tmp_path: Path) -> None:
    """A group needs a class of every resource: eight of memory bandwidth make eight groups."""
    make_tree(tmp_path, EPYC)
    (tmp_path / "info/MB/num_closids").write_text("8\n")
    assert read_tree(tmp_path).cache.closids == 8


def test_a_kernel_without_shareable_bits(tmp_path: Path) -> None:
    """Before 4.15 the file is not there: nothing is shared."""
    (make_tree(tmp_path) / "info/L3/shareable_bits").unlink()
    assert read_tree(tmp_path).cache.shareable == 0


def test_groups_are_told_apart(tmp_path: Path) -> None:
    """Ours by their prefix; those of others with their masks and mode; info, mon_groups and mon_data are none."""
    make_tree(tmp_path, EPYC)
    add_group(tmp_path, "parties-web", EPYC)
    add_group(tmp_path, "qemu-1-vcpus", EPYC, mask=0xF, mode="exclusive")
    tree = read_tree(tmp_path)
    assert tree.own == ("parties-web",)
    assert [(group.name, group.masks[5], group.exclusive) for group in tree.foreign] == [("qemu-1-vcpus", 0xF, True)]


@pytest.mark.parametrize(
    ("mode", "schemata", "masks"),
    [("pseudo-locked", "L3:1=3\n", {1: 3}), ("pseudo-locksetup", "L3:uninitialized\n", {})],
)
def test_pseudo_locked_ways_are_closed(tmp_path: Path, mode: str, schemata: str, masks: dict[int, int]) -> None:
    """A locked region has one domain alone; one that is being set up has no masks yet, and both are understood."""
    make_tree(tmp_path)
    (add_group(tmp_path, "rt", mode=mode) / "schemata").write_text(schemata)
    (group,) = read_tree(tmp_path).foreign
    assert (group.masks, group.exclusive) == (masks, True)


def test_who_holds_the_classes(tmp_path: Path) -> None:
    """Each group with the number of its threads and the name of one; what has vanished says so."""
    proc = tmp_path / "proc"
    (proc / "41").mkdir(parents=True)
    (proc / "41/comm").write_text("qemu-kvm\n")
    mount = make_tree(tmp_path / "resctrl")
    add_files(mount / "vm", XEON, tasks=(41, 42))
    add_files(mount / "old", XEON, tasks=(43,))
    add_files(mount / "idle", XEON)
    assert who_holds(mount, proc) == "idle (0 threads), old (gone), vm (2 threads, such as qemu-kvm)"


@pytest.mark.parametrize(
    ("path", "text", "words"),
    [
        ("info/L3/cbm_mask", "junk\n", "cbm_mask: 'junk' is not a number"),
        ("info/L3/cbm_mask", None, "cbm_mask: cannot read: No such file"),
        ("info/L3/min_cbm_bits", "", "min_cbm_bits: '' is not a number"),
        ("info/L3/num_closids", "many\n", "num_closids: 'many' is not a number"),
        ("schemata", "MB:0=100\n", "schemata: not understood: no L3 line"),
        ("schemata", "L3:0=xx\n", "schemata: not understood: invalid literal"),
        ("schemata", None, "schemata: cannot read: No such file"),
        ("vm/schemata", "\x00\xff", "vm/schemata: not understood"),
        ("vm/mode", None, "vm/mode: cannot read"),
    ],
)
def test_a_malformed_tree_ends_in_one_message(tmp_path: Path, path: str, text: str | None, words: str) -> None:
    """The message names the file, whatever is wrong with it."""
    make_tree(tmp_path)
    add_group(tmp_path, "vm")
    if text is None:
        (tmp_path / path).unlink()
    else:
        (tmp_path / path).write_text(text, encoding="latin-1")
    with pytest.raises(ResctrlError, match=words):
        read_tree(tmp_path)


def test_no_l3_to_allocate(tmp_path: Path) -> None:
    """A machine that can limit memory bandwidth alone, and a directory that is no resctrl."""
    make_tree(tmp_path / "a", EPYC)
    (tmp_path / "a/info/L3").rename(tmp_path / "away")
    with pytest.raises(ResctrlError, match=r"no L3 allocation, only L3_MON, MB; .*rdt=l3cat"):
        read_tree(tmp_path / "a")
    with pytest.raises(ResctrlError, match="is resctrl mounted there"):
        read_tree(tmp_path / "b")
