"""The Debian package: what its scripts do at which step, what is in it, and that it runs from where it was unpacked."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGING = Path(__file__).parents[2] / "configs/debian"
SCRIPTS = ("postinst", "prerm", "postrm")
SHELL = "#!/bin/sh\necho \"{name} $*\" >>'{log}'\n{body}\n"


class Root:
    """A scratch root with a systemctl and a parties that only note how they are called."""

    def __init__(self, place: Path, *, systemd: bool = True) -> None:
        self.place = place
        self.log = place / "log"
        for directory in ("bin", "usr/bin", "etc/parties", "var/lib/parties", "run/parties", "usr/lib/parties/lib"):
            (place / directory).mkdir(parents=True)
        if systemd:
            (place / "run/systemd/system").mkdir(parents=True)
        self.program("bin/systemctl")
        self.program("usr/bin/parties")

    def program(self, path: str, body: str = "exit 0") -> None:
        file = self.place / path
        file.write_text(SHELL.format(name=file.name, log=self.log, body=body))
        file.chmod(0o755)

    def run(self, script: str, *arguments: str) -> tuple[int, list[str], str]:
        """Exit code, what was called, and what was said."""
        self.log.write_text("")
        done = subprocess.run(
            ["sh", PACKAGING / script, *arguments],
            env={"PATH": f"{self.place}/bin:/usr/bin:/bin", "DPKG_ROOT": str(self.place)},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, self.log.read_text().splitlines(), done.stdout + done.stderr


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path)


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_scripts_are_sound(script: str) -> None:
    """They parse, and shellcheck has nothing to say where it is installed."""
    assert subprocess.run(["sh", "-n", PACKAGING / script], check=False).returncode == 0
    if shutil.which("shellcheck"):
        done = subprocess.run(["shellcheck", PACKAGING / script], capture_output=True, text=True, check=False)
        assert done.stdout == ""


def test_a_first_installation_starts_nothing(root: Root) -> None:
    """The unit is made known to systemd, and the operator told what to do next."""
    code, calls, said = root.run("postinst", "configure", "")
    assert (code, calls) == (0, ["systemctl daemon-reload"])
    assert "/etc/parties/parties.toml" in said


def test_an_upgrade_leaves_the_daemon_running_and_then_restarts_it(root: Root) -> None:
    """The restart resumes; a daemon that was not running is not started; one that does not come up fails no upgrade."""
    assert root.run("prerm", "upgrade", "0.2.0")[:2] == (0, [])
    assert root.run("postinst", "configure", "0.1.0")[:2] == (
        0,
        ["systemctl daemon-reload", "systemctl try-restart parties.service"],
    )
    root.program("bin/systemctl", "exit 1")
    code, _, said = root.run("postinst", "configure", "0.1.0")
    assert code == 0
    assert "did not start" in said


def test_removal_stops_and_restores_first(root: Root) -> None:
    """The stop puts everything back, and restore makes sure of it, before any file goes."""
    assert root.run("prerm", "remove")[:2] == (0, ["systemctl stop parties.service", "parties restore"])


def test_removal_is_refused_while_not_everything_is_back(root: Root) -> None:
    """The package stays, and says how to go on."""
    root.program("usr/bin/parties", "exit 1")
    code, _, said = root.run("prerm", "remove")
    assert code == 1
    assert "not removed" in said
    assert "journal.jsonl" in said


def test_without_systemd_nothing_asks_for_it(tmp_path: Path) -> None:
    """In a container or chroot the scripts do their work without systemctl."""
    root = Root(tmp_path, systemd=False)
    assert root.run("postinst", "configure", "")[:2] == (0, [])
    assert root.run("prerm", "remove")[:2] == (0, ["parties restore"])
    assert root.run("postrm", "remove")[:2] == (0, [])


def test_purging_leaves_nothing(root: Root) -> None:
    """Removal keeps the state (journal and records), purging does not; neither touches what is not ours."""
    link = root.place / "etc/systemd/system/multi-user.target.wants/parties.service"
    link.parent.mkdir(parents=True)
    link.symlink_to("/usr/lib/systemd/system/parties.service")
    assert root.run("postrm", "remove")[0] == 0
    assert (root.place / "var/lib/parties").is_dir()
    assert not (root.place / "run/parties").exists()
    assert not (root.place / "usr/lib/parties").exists()
    assert root.run("postrm", "purge")[0] == 0
    left = [path for path in root.place.rglob("*parties*") if "usr/bin" not in str(path)]
    assert left == []
    assert link.parent.is_dir()


def test_the_carried_libraries_are_what_the_daemon_imports() -> None:
    """Each is known by its hash, and what setup.cfg asks for at run time is among them."""
    text = (PACKAGING / "requirements.txt").read_text()
    names = re.findall(r"^([a-z-]+)==", text, re.MULTILINE)
    assert {"click", "jeepney", "psutil", "pydantic", "pydantic-core", "rich"} <= set(names)
    assert all("--hash=sha256:" in part for part in re.split(r"^[a-z-]+==", text, flags=re.MULTILINE)[1:])


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, built; skipped where it cannot be."""
    if shutil.which("dpkg-deb") is None or sys.version_info[:2] != (3, 11):
        pytest.skip("the package is built on Debian 12 with its Python 3.11")
    output = tmp_path_factory.mktemp("deb") / "parties.deb"
    build(output)
    return output


def build(output: Path) -> None:
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1790000000"}
    done = subprocess.run(
        [sys.executable, PACKAGING / "build.py", output], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_package_holds_what_belongs_to_it(package: Path, tmp_path: Path) -> None:
    """Command, unit, configuration as a conffile, completions, licences; all of root's, nothing of this machine's paths."""
    listing = subprocess.run(["dpkg-deb", "-c", package], capture_output=True, text=True, check=True).stdout
    for path in (
        "./usr/bin/parties",
        "./usr/lib/systemd/system/parties.service",
        "./usr/lib/systemd/system/sys-fs-resctrl.mount",
        "./etc/parties/parties.toml",
        "./usr/share/bash-completion/completions/parties",
        "./usr/share/doc/parties/copyright",
    ):
        assert f" {path}\n" in listing
    assert all(" root/root " in line for line in listing.splitlines())
    subprocess.run(["dpkg-deb", "-R", package, tmp_path / "tree"], check=True)
    assert (tmp_path / "tree/DEBIAN/conffiles").read_text() == "/etc/parties/parties.toml\n"
    repository = str(PACKAGING.parents[1]).encode()
    assert [path for path in (tmp_path / "tree").rglob("*") if path.is_file() and repository in path.read_bytes()] == []
    assert "click" in (tmp_path / "tree/usr/share/doc/parties/copyright").read_text()


@pytest.mark.slow
def test_the_package_runs_from_where_it_was_unpacked(package: Path, tmp_path: Path) -> None:
    """With its own libraries alone: --version, and check tells a mistake; child processes find their modules as well."""
    subprocess.run(["dpkg-deb", "-x", package, tmp_path], check=True)
    python, command = tmp_path / "usr/lib/parties/bin/python3", tmp_path / "usr/bin/parties"

    def parties(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([python, "-I", command, *words], capture_output=True, text=True, check=False, cwd="/")

    assert parties("--version").stdout.startswith("parties ")
    (tmp_path / "wrong.toml").write_text("version = 1\nintervall = 3\n")
    checked = parties("check", str(tmp_path / "wrong.toml"))
    assert checked.returncode == 2
    assert "interval" in checked.stderr + checked.stdout
    code = "import sys, parties.control, parties.slow_writer, jeepney; print(sys.executable, jeepney.__file__)"
    child = subprocess.run([python, "-P", "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert child.stdout.split() == [str(python), str(tmp_path / "usr/lib/parties/lib/python3.11/site-packages/jeepney/__init__.py")]


@pytest.mark.slow
def test_the_same_sources_give_the_same_bytes(package: Path, tmp_path: Path) -> None:
    """Built twice, byte for byte."""
    build(tmp_path / "again.deb")
    assert (tmp_path / "again.deb").read_bytes() == package.read_bytes()
