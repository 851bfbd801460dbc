import contextlib
import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.emulation.resctrl import Mounted, ResctrlOptions, mounted_resctrl

pytestmark = pytest.mark.emulation


@pytest.fixture
def resctrl(fuse: None, tmp_path: Path) -> Iterator[Mounted]:
    with mounted_resctrl(tmp_path / "resctrl") as handle:
        (handle.path / "a").mkdir()
        yield handle


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EBUSY, errno.ENOSPC, errno.ENODEV, errno.ESRCH, errno.EPERM, errno.EIO])
def test_an_ordered_error_reaches_the_writer(number: int, resctrl: Mounted) -> None:
    """The next write fails with exactly the errno ordered, the one after it succeeds, and the log has both."""
    resctrl.fail(number, "/a/schemata")
    with (resctrl.path / "a/schemata").open("wb", buffering=0) as file:  # a buffered file would try again as it is closed
        with pytest.raises(OSError) as caught:  # noqa: PT011 (the errno is what matters)
            file.write(b"L3:0=3\n")
        assert caught.value.errno == number
        file.write(b"L3:0=3\n")
    assert [entry["errno"] for entry in resctrl.log() if entry["op"] == "write"] == [number, 0]
    assert resctrl.count() == len(resctrl.log())


def test_writes_can_be_ignored_or_narrowed(resctrl: Mounted) -> None:
    """A write that succeeds and does nothing, and one that something else comes of."""
    file = resctrl.path / "a/schemata"
    before = file.read_text()
    resctrl.ignore("/a/schemata", count=1)
    file.write_text("L3:0=3\n")
    assert file.read_text() == before
    resctrl.replace("L3:0=1\n", "/a/schemata")
    file.write_text("L3:0=3\n")
    assert file.read_text().endswith("=001\n")


def test_a_hanging_write_ends_when_released(resctrl: Mounted) -> None:
    """A hanging write lets others through, and takes effect when it is released."""
    resctrl.hang("/a/schemata")
    file = resctrl.path / "a/schemata"
    writer = threading.Thread(target=file.write_text, args=("L3:0=3\n",))
    writer.start()
    while not any(entry["op"] == "write" for entry in resctrl.log()):
        time.sleep(0.001)
    assert file.read_text().endswith("=7ff\n")
    resctrl.release()
    writer.join()
    assert file.read_text().endswith("=003\n")


def test_what_vanished_is_gone(resctrl: Mounted) -> None:
    """ENOENT by path, ENODEV by a descriptor that is open."""
    with (resctrl.path / "a/mode").open() as file:
        resctrl.vanish("/a")
        with pytest.raises(OSError) as caught:  # noqa: PT011 (the errno is what matters)
            os.pread(file.fileno(), 100, 0)
    assert caught.value.errno == errno.ENODEV
    assert not (resctrl.path / "a").exists()
    with pytest.raises(FileNotFoundError):
        (resctrl.path / "a/mode").read_text()


def test_a_mount_ends_with_its_test(fuse: None, tmp_path: Path) -> None:
    """If whoever mounted it is killed, the tree is unmounted and its process ends."""
    script = (
        "import sys, time; from pathlib import Path; from tests.emulation.resctrl import mounted_resctrl\n"
        "with mounted_resctrl(Path(sys.argv[1])) as handle: print(handle.pid, flush=True); time.sleep(600)"
    )
    mount = tmp_path / "resctrl"
    owner = subprocess.Popen(
        [sys.executable, "-c", script, str(mount)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2], text=True
    )
    assert owner.stdout is not None
    server = int(owner.stdout.readline())
    owner.kill()
    owner.communicate()
    while Path(f"/proc/{server}").exists() and not _zombie(server):
        time.sleep(0.01)
    assert not os.path.ismount(mount)


def _zombie(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def test_new_threads_begin_where_their_process_is(fuse: None, tmp_path: Path) -> None:
    """Threads and children that begin after a process was moved are in its group; those of before are not."""
    program = (
        "import threading, sys, time\n"
        "def start(): threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "start(); print(flush=True); input(); start(); print(flush=True); input()"
    )
    with mounted_resctrl(tmp_path / "resctrl", ResctrlOptions(closids=4)) as resctrl:
        (resctrl.path / "a").mkdir()
        process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.05)  # beginnings are told apart by clock ticks
            (resctrl.path / "a/tasks").write_text(str(process.pid))
            time.sleep(0.05)
            process.stdin.write(b"\n")
            process.stdin.flush()
            process.stdout.readline()
            threads = sorted(int(name) for name in os.listdir(f"/proc/{process.pid}/task"))  # noqa: PTH208 (names)
            inside = {int(tid) for tid in (resctrl.path / "a/tasks").read_text().split()}
            assert len(threads) == 3
            assert inside == {process.pid, max(threads)}
        finally:
            process.kill()
            process.communicate()
