import contextlib
import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.emulation.kernel_text import format_cpu_list, format_cpu_mask, parse_cpu_list, parse_cpu_mask
from tests.emulation.resctrl_model import ResctrlModel, ResctrlOptions
from tests.emulation.threads import Threads

LEADER, THREAD = 100, 101


class FewThreads(Threads):
    """Two threads of one process, placed explicitly; no inheritance."""

    def __init__(self) -> None:
        super().__init__()
        self._groups = {LEADER: 0, THREAD: 0}

    def put(self, tid: int, group: int) -> bool:
        if tid in self._groups:
            self._groups[tid] = group
        return tid in self._groups

    def group_of(self, tid: int) -> int:
        return self._groups.get(tid, 0)

    def inside(self, group: int) -> list[int]:
        return sorted(tid for tid, where in self._groups.items() if where == group)


def model(**options: object) -> ResctrlModel:
    return ResctrlModel(ResctrlOptions(**options), FewThreads(), [0, 1, 2, 3])  # type: ignore[arg-type]


def refused(tree: ResctrlModel, path: str, text: str) -> tuple[int | None, str]:
    with pytest.raises(OSError) as caught:  # noqa: PT011 (the errno is what matters)
        tree.write(path, text)
    return caught.value.errno, tree.read("/info/last_cmd_status").strip()


TWO = {"domains": {0: [0, 1], 7: [2, 3]}}


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("L3:0=5\n", "The mask 5 has non-consecutive 1-bits"),
        ("L3:0=0\n", "Mask out of range"),
        ("L3:0=800\n", "Mask out of range"),
        ("L3:0=xyz\n", "Non-hex character in the mask xyz"),
        ("L3:0=1\n", "Need at least 2 bits in the mask"),
        ("L3:0=3;0=3\n", "Duplicate domain 0"),
        ("L3:1=3\n", "ok"),  # an unknown domain: the kernel says nothing
        ("L3: 0=3\n", "Missing '=' or non-numeric domain"),
        ("L3:0\n", "Missing '=' or non-numeric domain"),
        ("L3\n", "Missing ':'"),
        ("L3:\n", "Missing 'L3' value"),
        ("L3:0=3\n\n", "Missing ':'"),
        ("MB:0=10\n", "Unknown or unsupported resource name 'MB'"),
    ],
)
def test_a_bad_schemata_changes_nothing(text: str, status: str) -> None:
    """Each mistake is EINVAL with the kernel's words, and no domain of the line takes effect."""
    tree = model(min_cbm_bits=2, **TWO)
    before = tree.read("/schemata")
    assert refused(tree, "/schemata", "L3:7=3\n" + text if text == "L3:0=5\n" else text) == (errno.EINVAL, status)
    assert tree.read("/schemata") == before


def test_a_partial_line_leaves_the_rest() -> None:
    """A line that names one domain changes that alone; names are padded for CDP, masks to their width."""
    tree = model(**TWO)
    tree.write("/schemata", "  L3:7=0x3;\n")
    assert tree.read("/schemata") == "    L3:0=7ff;7=003\n"
    assert tree.read("/size") == f"    L3:0={11 << 20};7={2 << 20}\n"


def test_a_missing_newline_keeps_the_last_status() -> None:
    """Without a newline the write fails before anything is looked at, so the status is that of an earlier command."""
    tree = model()
    refused(tree, "/schemata", "L3:0=5\n")
    assert refused(tree, "/schemata", "L3:0=3") == (errno.EINVAL, "The mask 5 has non-consecutive 1-bits")


def test_groups_end_when_the_classes_do() -> None:
    """ENOSPC past the CLOSIDs, which CDP halves; a removed group's class can be had again."""
    tree = model(closids=8, cdp=True)
    for name in "abc":
        tree.mkdir(f"/{name}")
    with pytest.raises(OSError, match="No space") as caught:
        tree.mkdir("/d")
    assert caught.value.errno == errno.ENOSPC
    assert tree.read("/info/last_cmd_status") == "Out of CLOSIDs\n"
    assert tree.read("/info/L3CODE/num_closids") == "4\n"
    tree.rmdir("/b")
    tree.mkdir("/d")
    assert tree.groups["d"].closid == 2


@pytest.mark.parametrize("path", ["/info/x", "/a/b", "/mon_groups/x", "/a/mon_groups/b"])
def test_groups_only_in_their_places(path: str) -> None:
    """EPERM for a directory anywhere but in the root, where nothing is monitored."""
    tree = model()
    tree.mkdir("/a")
    with pytest.raises(PermissionError) as caught:
        tree.mkdir(path)
    assert caught.value.errno == errno.EPERM


def test_threads_move_and_return() -> None:
    """A thread is in one group at a time; a removed group's threads and CPUs go back to the root."""
    tree = model()
    tree.mkdir("/a")
    tree.write("/a/tasks", f"{THREAD}\n")
    tree.write("/a/cpus_list", "1-2")
    assert (tree.read("/a/tasks"), tree.read("/tasks")) == (f"{THREAD}\n", f"{LEADER}\n")
    assert (tree.read("/a/cpus"), tree.read("/cpus_list")) == ("6\n", "0,3\n")
    tree.rmdir("/a")
    assert tree.read("/tasks") == f"{LEADER}\n{THREAD}\n"
    assert tree.read("/cpus_list") == "0-3\n"


@pytest.mark.parametrize(
    ("path", "text", "number", "status"),
    [
        ("/a/tasks", "999\n", errno.ESRCH, "No task 999"),
        ("/a/tasks", "-1\n", errno.EINVAL, "ok"),
        ("/a/tasks", "me\n", errno.EINVAL, "ok"),
        ("/a/cpus_list", "9\n", errno.EINVAL, "Can only assign online CPUs"),
        ("/a/cpus_list", "3-1\n", errno.EINVAL, "Bad CPU list/mask"),
        ("/a/cpus", "g\n", errno.EINVAL, "Bad CPU list/mask"),
        ("/cpus_list", "0\n", errno.EINVAL, "Can't drop CPUs from default group"),
        ("/a/mode", "private\n", errno.EINVAL, "Unknown or unsupported mode"),
        ("/a/mode", "exclusive\n", errno.EINVAL, "Schemata overlaps"),
        ("/gone/tasks", "1\n", errno.ENODEV, "ok"),
    ],
)
def test_the_other_refusals(path: str, text: str, number: int, status: str) -> None:
    """Threads, CPUs and modes are refused with the kernel's errno and words."""
    tree = model()
    tree.mkdir("/a")
    assert refused(tree, path, text) == (number, status)


def test_a_recent_kernel_names_the_thread_again() -> None:
    """Since lists of threads are taken, the failing one is told as well, and those before it have moved."""
    tree = model(recent=True)
    tree.mkdir("/a")
    assert refused(tree, "/a/tasks", f"{THREAD},999\n") == (errno.ESRCH, "No task 999\nError while processing task 999")
    assert tree.read("/a/tasks") == f"{THREAD}\n"


def test_exclusive_groups_keep_others_away() -> None:
    """Who is exclusive overlaps with nobody, nor with ways that devices share; a new group gets what is left."""
    tree = model(ways=8, shareable_bits=0xC0)
    tree.mkdir("/a")
    tree.write("/a/schemata", "L3:0=3\n")
    tree.write("/schemata", "L3:0=fc\n")
    tree.write("/a/mode", "exclusive\n")
    assert refused(tree, "/schemata", "L3:0=ff\n") == (errno.EINVAL, "Overlaps with exclusive group")
    assert refused(tree, "/a/schemata", "L3:0=7\n") == (errno.EINVAL, "Overlaps with other group")
    assert tree.read("/info/L3/bit_usage") == "0=XXSSSSEE\n"
    tree.mkdir("/b")
    assert tree.read("/b/schemata") == "    L3:0=fc\n"


def test_monitoring_groups_stay_in_their_family() -> None:
    """A monitoring group takes threads of its control group only, whose list has them still; RMIDs run out."""
    tree = model(monitoring=True, rmids=4)
    tree.mkdir("/a")
    tree.mkdir("/a/mon_groups/m")
    assert refused(tree, "/a/mon_groups/m/tasks", f"{LEADER}\n") == (errno.EINVAL, "Can't move task to different control group")
    tree.write("/a/tasks", f"{LEADER}\n")
    tree.write("/a/mon_groups/m/tasks", f"{LEADER}\n")
    assert tree.read("/a/tasks") == tree.read("/a/mon_groups/m/tasks") == f"{LEADER}\n"
    tree.set_counter("a/mon_groups/m", 0, "llc_occupancy", "4096")
    assert tree.read("/a/mon_groups/m/mon_data/mon_L3_00/llc_occupancy") == "4096\n"
    tree.mkdir("/b")
    with pytest.raises(OSError, match="No space"):
        tree.mkdir("/c")
    assert tree.read("/info/last_cmd_status").endswith("Out of RMIDs\n")
    tree.rmdir("/a/mon_groups/m")
    assert tree.read("/a/tasks") == f"{LEADER}\n"


def test_bandwidth_is_rounded_up() -> None:
    """MB takes 10 to 100 in steps of 10, rounded up."""
    tree = model(memory_bandwidth=True)
    tree.write("/schemata", "MB:0=42\n")
    assert tree.read("/schemata").splitlines()[1] == "    MB:0= 50"
    assert refused(tree, "/schemata", "MB:0=5\n") == (errno.EINVAL, "MB value 5 out of range [10,100]")


def test_every_name_listed_can_be_read() -> None:
    """Each listed name has a mode, and each file a text."""
    tree = model(monitoring=True, memory_bandwidth=True, recent=True, **TWO)
    tree.mkdir("/a")
    tree.mkdir("/a/mon_groups/m")
    seen, waiting = [], ["/"]
    while waiting:
        path = waiting.pop()
        for name in tree.names(path):
            child = f"{path.rstrip('/')}/{name}"
            if tree.mode(child) & 0o40000:
                waiting.append(child)
            else:
                seen.append(child)
                assert isinstance(tree.read(child), str)
    assert "/a/mon_groups/m/mon_data/mon_L3_07/mbm_local_bytes" in seen
    assert "/info/L3/sparse_masks" in seen


CPUS_WRITES = st.tuples(st.sampled_from(["", "/a", "/b"]), st.frozensets(st.integers(0, 3)), st.booleans())


@given(st.lists(CPUS_WRITES, max_size=12))
def test_cpus_belong_to_one_group(writes: list[tuple[str, frozenset[int], bool]]) -> None:
    """Whatever is written to cpus and cpus_list, every CPU is in exactly one control group."""
    tree = model()
    for name in "ab":
        tree.mkdir(f"/{name}")
    for place, cpus, as_list in writes:
        with contextlib.suppress(OSError):  # the root gives up none by itself
            if as_list:
                tree.write(f"{place}/cpus_list", format_cpu_list(cpus))
            else:
                tree.write(f"{place}/cpus", format_cpu_mask(cpus, 4))
        assert sorted(cpu for group in tree.groups.values() for cpu in group.cpus) == [0, 1, 2, 3]


@given(st.frozensets(st.integers(0, 80)))
def test_cpu_texts_are_read_as_printed(cpus: frozenset[int]) -> None:
    """Lists and masks of CPUs survive being printed and read."""
    assert parse_cpu_list(format_cpu_list(cpus)) == cpus
    assert parse_cpu_mask(format_cpu_mask(cpus, 81)) == cpus


@pytest.mark.parametrize(("text", "cpus"), [("01,", {0}), ("1,00000000\n", {32}), ("\n", set()), ("ff", set(range(8)))])
def test_masks_as_tools_write_them(text: str, cpus: set[int]) -> None:
    """What libpqos writes is taken: a comma at the end, words without padding."""
    assert parse_cpu_mask(text) == cpus


def test_too_much_in_one_word_overflows() -> None:
    """More than 32 bits between two commas are EOVERFLOW."""
    with pytest.raises(OSError) as caught:  # noqa: PT011 (the errno is what matters)
        parse_cpu_mask("123456789")
    assert caught.value.errno == errno.EOVERFLOW
