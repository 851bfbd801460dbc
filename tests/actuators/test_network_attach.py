"""Where our qdisc can go, and which groups net_cls marks, on plain values and files."""

from __future__ import annotations

from pathlib import Path

import pytest

from actuators.network.actuator import htb_class
from actuators.network.attach import Wish, default_kind, find_place
from actuators.network.classify import Recognised, classify
from actuators.network.knobs import parse_qdisc, qdisc_text
from actuators.network.net_cls import CLASS_ID, ClassIdKnob
from actuators.network.tc import TC_H_INGRESS, TC_H_ROOT, ClassIdRule, ClassState, Qdisc

ROOT = 0x00010000
LEAF = ROOT | 0x30
FIRST, SECOND = 0x70610010, 0x70610011


def leaves(ceil: int = 1_000) -> dict[int, ClassState]:
    return {class_id: ClassState(htb_class(ROOT, 1_000, ceil, 0), 0) for class_id in (ROOT | 0x20, LEAF)}


@pytest.mark.parametrize("kind", ["pfifo_fast", "fq_codel", "fq"])
def test_the_kernel_s_default_is_nobody_s(kind: str) -> None:
    """As a single queue, as the leaves of mq (those that are not in use keep the old default), and as no queue at all."""
    for others in (
        [Qdisc("noqueue", 0, TC_H_ROOT)],
        [Qdisc(kind, 0, TC_H_ROOT)],
        [Qdisc("mq", 0, TC_H_ROOT), Qdisc(kind, 0, 1), Qdisc("pfifo_fast", 0, 2), Qdisc("clsact", 0xFFFF0000, TC_H_INGRESS)],
        [],
    ):
        assert find_place("eth0", others, {}, Wish(default_kind=kind)) == (TC_H_ROOT, "", None)


def test_a_default_of_earlier_would_not_come_back() -> None:
    """Told with what to do; where the kernel does not say its default, nothing is suspected."""
    others = [Qdisc("mq", 0, TC_H_ROOT), Qdisc("pfifo_fast", 0, 1), Qdisc("pfifo_fast", 0, 2)]
    reason = find_place("eth0", others, {}, Wish(default_kind="fq")).reason
    assert "the kernel would bring back fq" in reason
    assert "`tc qdisc replace dev eth0 root pfifo && tc qdisc del dev eth0 root`" in reason
    assert find_place("eth0", others, {}, Wish()).reason == ""


def test_prio_wants_its_band_named() -> None:
    """Its traffic goes to three bands, so that no one of them has it all."""
    others = [Qdisc("prio", ROOT, TC_H_ROOT)]
    assert "name a leaf class" in find_place("eth0", others, {}, Wish()).reason
    assert find_place("eth0", others, {}, Wish("1:3")).parent == ROOT | 3
    assert "without a class 2:3" in find_place("eth0", others, {}, Wish("2:3")).reason
    others.append(Qdisc("pfifo", 0x00300000, ROOT | 3))
    assert "class 1:3 has a qdisc of its own already, pfifo 30:" in find_place("eth0", others, {}, Wish("1:3")).reason


def test_the_default_class_of_an_htb_is_taken_if_it_is_free_and_wide_enough() -> None:
    """What hangs below another class does not matter."""
    others = [Qdisc("htb", ROOT, TC_H_ROOT, LEAF), Qdisc("fq", 0x00200000, ROOT | 0x20)]
    assert find_place("eth0", others, leaves(), Wish(rate_bytes_per_s=1_000)) == (LEAF, "", others[0])
    assert "never gets more than 7992 bit/s" in find_place("eth0", others, leaves(999), Wish(rate_bytes_per_s=1_000)).reason


@pytest.mark.parametrize("kind", ["mq", "mqprio", "tbf", "netem", "fq_codel", "hfsc"])
def test_below_all_others_there_is_no_place(kind: str) -> None:
    """Also if somebody names a class."""
    for asked in ("", "1:1"):
        assert (
            f"already has a root qdisc {kind} handle 1:"
            in find_place("eth0", [Qdisc(kind, ROOT, TC_H_ROOT)], {}, Wish(asked)).reason
        )


def test_what_cannot_be_read_is_no_default(tmp_path: Path) -> None:
    """A network namespace may not show it."""
    assert default_kind(tmp_path / "none") == ""
    (tmp_path / "default").write_text("fq\n")
    assert default_kind(tmp_path / "default") == "fq"


@pytest.mark.parametrize("parent", [TC_H_ROOT, LEAF])
def test_the_place_survives_the_journal(parent: int) -> None:
    """Text and back; at the root it is what earlier versions wrote."""
    assert parse_qdisc(qdisc_text(FIRST, parent)) == (FIRST, parent)
    assert qdisc_text(FIRST, TC_H_ROOT) == "default 7061:10"


def marked(root: Path, path: str, number: int) -> Path:
    place = root / path
    place.mkdir(parents=True)
    (place / CLASS_ID).write_text(f"{number}\n")
    return place / CLASS_ID


def test_groups_without_a_mark_are_given_one_with_those_below_them(tmp_path: Path) -> None:
    """One rule for each number; a group that the v2 tree has needs none; ours that is there is told from what is missing."""
    v2, net_cls = tmp_path / "v2", tmp_path / "net_cls"
    (v2 / "kv").mkdir(parents=True)
    files = [marked(net_cls, "web", 0), marked(net_cls, "web/below", FIRST), marked(net_cls, "kv", 0)]
    both = [Recognised("service web", "web", ("/web",)), Recognised("service kv", "kv", ("/kv",))]
    found = classify(both, {"web": FIRST, "kv": SECOND}, v2, net_cls)
    assert found.class_ids == {ClassIdRule(FIRST, FIRST)}
    assert [(mark.path, mark.number, mark.holder, mark.there) for mark in found.marks] == [
        (files[0], FIRST, "web", False),
        (files[1], FIRST, "web", True),
    ]
    assert {rule.class_id for rule in found.groups} == {SECOND}
    assert found.problems == ()


def test_a_foreign_mark_is_kept_and_a_shared_one_told(tmp_path: Path) -> None:
    """The first service has it; of two groups of one service nothing has to be said."""
    for path, number in (("a", 5), ("b", 5), ("c", 5)):
        marked(tmp_path, path, number)
    found = classify(
        [Recognised("service one", "one", ("/a", "/b")), Recognised("service two", "two", ("/c",))],
        {"one": FIRST, "two": SECOND},
        None,
        tmp_path,
    )
    assert found.class_ids == {ClassIdRule(5, FIRST)}
    assert not found.marks
    assert [problem.partition(" has the number ")[2] for problem in found.problems] == [
        "5 of service one; its traffic counts as theirs"
    ]


def test_no_mark_reads_as_none_and_comes_back_as_none(tmp_path: Path) -> None:
    """0 is what a group has that nobody marked."""
    knob = ClassIdKnob(marked(tmp_path, "web", 0))
    assert knob.read() is None
    knob.write(str(FIRST))
    assert knob.same(str(FIRST), knob.read())
    knob.restore(None)
    assert knob.read() is None
