"""Builds the Debian package: ``build.py OUTPUT.deb`` with dpkg-deb, in build/deb below the repository.

The package carries an environment of its own below /usr/lib/parties, made of Debian's Python 3.11, the wheels that
``requirements.txt`` names by their hashes, and this tree. So installing needs no pip, no compiler and no network, and no file of
the system's Python is touched. The same commit gives the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from configparser import ConfigParser
from pathlib import Path

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
WORK = REPOSITORY / "build/deb"
TREES = ("parties", "monitors", "actuators")
"""What the daemon and its commands need; the harness and the simulated node are for a checkout."""

DOCUMENTS = (
    *("cache", "configuration", "control-groups", "doctor", "frequency", "histogram-socket", "platforms", "policies", "replay"),
    *("rest", "run", "signal", "systemd", "undo"),
)
MINOR = 11
LIBRARIES = f"usr/lib/parties/lib/python3.{MINOR}/site-packages"
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/parties",
    "zsh": "usr/share/zsh/vendor-completions/_parties",
    "fish": "usr/share/fish/vendor_completions.d/parties.fish",
}
CONTROL = """\
Package: parties
Version: {version}
Architecture: {architecture}
Maintainer: The parties developers <parties@localhost>
Installed-Size: {kibibytes}
Depends: python3 (>= 3.{minor}), python3 (<< 3.{next}), libc6
Recommends: iproute2
Suggests: linux-cpupower, intel-cmt-cat
Section: admin
Priority: optional
Description: {summary}
 A daemon that divides cores, cache, frequency, memory, disk and network bandwidth
 among latency-critical services and best-effort jobs, so that each service meets
 its tail-latency target (PARTIES, ASPLOS 2019). Whatever it changes is put back.
"""


class BuildError(Exception):
    """The package cannot be built here: what is missing, and what to do."""


def main() -> None:
    """Build it; one message and exit code 2 where that cannot be."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("output", type=Path)
    output = parser.parse_args().output
    try:
        build(output)
    except BuildError as error:
        sys.exit(f"deb: {error}")


def build(output: Path) -> None:
    """Lay the tree out and pack it. Builds side by side do not meet."""
    architecture = _run("dpkg", "--print-architecture").strip()
    WORK.mkdir(parents=True, exist_ok=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=WORK, prefix="tree-") as place:
        _pack(Path(place), output, architecture, _epoch())
    print(f"deb: {output}, {output.stat().st_size >> 10} KiB")  # noqa: T201 - a command's answer


def _pack(tree: Path, output: Path, architecture: str, epoch: int) -> None:
    _environment(tree)
    _files(tree)
    _completions(tree)
    _compile(*(tree / LIBRARIES / name for name in TREES))
    _control(tree, architecture)
    _normalise(tree, epoch)
    _run("dpkg-deb", "--root-owner-group", "-Zzstd", "--build", str(tree), str(output), SOURCE_DATE_EPOCH=str(epoch))


def _environment(tree: Path) -> None:
    """A virtual environment, laid out by hand: one made by venv has this machine's paths in it."""
    home = tree / "usr/lib/parties"
    (home / "bin").mkdir(parents=True)
    (home / "bin/python3").symlink_to("/usr/bin/python3")
    (home / "pyvenv.cfg").write_text(f"home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.{MINOR}\n")
    shutil.copytree(_libraries(), tree / LIBRARIES)
    for name in TREES:
        shutil.copytree(REPOSITORY / name, tree / LIBRARIES / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc", ".*"))
    info = tree / LIBRARIES / f"parties-{_metadata('version')}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: parties\nVersion: {_metadata('version')}\n")
    (info / "INSTALLER").write_text("dpkg\n")


def _libraries() -> Path:
    """The wheels, unpacked; kept for the next build until ``requirements.txt`` changes."""
    requirements = HERE / "requirements.txt"
    key = hashlib.sha256(requirements.read_bytes()).hexdigest()[:16]
    place = WORK / f"libraries-{key}"
    if not place.is_dir():
        print("deb: fetching what the package carries from PyPI", flush=True)  # noqa: T201 - it can take a while
        for old in WORK.glob("libraries-*"):
            shutil.rmtree(old)
        unpacked = Path(tempfile.mkdtemp(dir=WORK, prefix="unpacked-"))
        pip = ("-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--no-compile", "--no-deps", "--require-hashes")
        target = ("--only-binary", ":all:", "--python-version", f"3.{MINOR}", "--implementation", "cp", "--target", str(unpacked))
        _run(sys.executable, *pip, *target, "-r", str(requirements), PIP_ROOT_USER_ACTION="ignore")
        shutil.rmtree(unpacked / "bin", ignore_errors=True)
        for tests in [path for path in unpacked.rglob("tests") if path.is_dir()]:
            shutil.rmtree(tests)
        for record in unpacked.glob("*.dist-info/*"):
            if record.name in ("RECORD", "direct_url.json", "REQUESTED"):  # of pip's, and not what dpkg has put there
                record.unlink()
        _compile(*sorted(path for path in unpacked.iterdir() if path.is_dir() and not path.name.endswith(".dist-info")))
        try:
            unpacked.rename(place)
        except OSError:  # another build was faster
            shutil.rmtree(unpacked)
    return place


def _files(tree: Path) -> None:
    units, documents = tree / "usr/lib/systemd/system", tree / "usr/share/doc/parties"
    _copy(HERE / "parties", tree / "usr/bin/parties", 0o755)
    _copy(REPOSITORY / "configs/parties.toml", tree / "etc/parties/parties.toml")
    for unit in sorted((REPOSITORY / "configs/systemd").iterdir()):
        _copy(unit, units / unit.name)
    for name in DOCUMENTS:
        if (REPOSITORY / f"docs/{name}.md").exists():
            _copy(REPOSITORY / f"docs/{name}.md", documents / f"{name}.md")
    _copy(REPOSITORY / "configs/two-cores.toml", documents / "examples/two-cores.toml")
    (documents / "changelog.gz").write_bytes(gzip.compress((REPOSITORY / "CHANGELOG.md").read_bytes(), mtime=0))
    (documents / "copyright").write_text(_copyright(tree))


def _copyright(tree: Path) -> str:
    """Our licence, then the texts of what is carried, each under its name."""
    parts = ["parties\n\n" + (REPOSITORY / "LICENSE").read_text()]
    for info in sorted((tree / LIBRARIES).glob("*.dist-info")):
        texts = [path for path in sorted(info.rglob("*")) if path.is_file() and path.name.lower().startswith(("licen", "copying"))]
        parts += [f"{info.name.removesuffix('.dist-info')}\n\n{path.read_text(encoding='utf-8')}" for path in texts]
    return f"\n{'-' * 80}\n\n".join(parts)


def _completions(tree: Path) -> None:
    """As the command itself prints them."""
    for shell, place in COMPLETIONS.items():
        code = "import sys; from parties.cli import main; main(sys.argv[1:])"
        text = _run(
            _python(), "-I", "-c", f"import sys; sys.path.insert(0, {str(tree / LIBRARIES)!r}); {code}", "completion", shell
        )
        (tree / place).parent.mkdir(parents=True, exist_ok=True)
        (tree / place).write_text(text)


def _compile(*places: Path) -> None:
    """Byte code that is never checked against the source, as the daemon may not write there and dpkg replaces both."""
    for place in places:
        options = ("-q", "-f", "--invalidation-mode", "unchecked-hash", "-s", str(place), "-p", f"/{LIBRARIES}/{place.name}")
        _run(_python(), "-m", "compileall", *options, str(place), PYTHONHASHSEED="0")


def _python() -> str:
    """The Python that the package is for."""
    python = Path("/usr/bin/python3")
    version = _run(str(python), "-c", "import sys; print(sys.version_info[:2])").strip() if python.exists() else "none"
    if version != f"(3, {MINOR})":
        raise BuildError(f"{python} is to be Python 3.{MINOR} (Debian 12), found {version}; build on Debian 12")
    return str(python)


def _control(tree: Path, architecture: str) -> None:
    control = tree / "DEBIAN"
    control.mkdir()
    files = sorted(path for path in tree.rglob("*") if path.is_file() and not path.is_symlink() and control not in path.parents)
    text = CONTROL.format(
        version=_metadata("version"),
        architecture=architecture,
        kibibytes=sum(-(-path.stat().st_size // 1024) for path in files),
        minor=MINOR,
        next=MINOR + 1,
        summary=_metadata("description"),
    )
    (control / "control").write_text(text)
    (control / "conffiles").write_text("/etc/parties/parties.toml\n")
    sums = [f"{hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()}  {path.relative_to(tree)}" for path in files]
    (control / "md5sums").write_text("".join(f"{line}\n" for line in sums))
    for script in ("postinst", "prerm", "postrm"):
        _copy(HERE / script, control / script, 0o755)


def _normalise(tree: Path, epoch: int) -> None:
    """One time and one set of permissions, whoever builds it and when."""
    for path in (tree, *tree.rglob("*")):
        if not path.is_symlink():
            executable = path.is_dir() or (path.parent in (tree / "usr/bin", tree / "DEBIAN") and path.stat().st_mode & 0o100)
            path.chmod(0o755 if executable else 0o644)
        os.utime(path, (epoch, epoch), follow_symlinks=False)


def _copy(source: Path, target: Path, mode: int = 0o644) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


def _metadata(key: str) -> str:
    parser = ConfigParser(interpolation=None)
    parser.read(REPOSITORY / "setup.cfg")
    return parser["metadata"][key]


def _epoch() -> int:
    """SOURCE_DATE_EPOCH, else the last commit's time."""
    given = os.environ.get("SOURCE_DATE_EPOCH") or _run("git", "-C", str(REPOSITORY), "log", "-1", "--format=%ct").strip()
    return int(given)


def _run(*command: str, **environment: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)  # noqa: S603
    except FileNotFoundError as error:
        raise BuildError(f"{command[0]} is not installed; install the package that has it (dpkg-dev, git, python3)") from error
    if done.returncode:
        raise BuildError(f"{' '.join(command)}: exit code {done.returncode}: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    main()
