"""The guest's second disk, made for each session: the project's sources, what they need of PyPI, and packages that were built."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
TREES = ("parties", "monitors", "actuators", "configs", "tests/guest", "tests/emulation", "tests/support")
DISTRIBUTIONS = (
    *("annotated_types", "click", "jeepney", "libcgroup", "libcgroup_bind", "markdown_it", "mdurl", "psutil", "pydantic"),
    *("pydantic_core", "pygments", "pyroute2", "rich", "typing_extensions.py", "typing_inspection"),
)
"""What the command imports, by the names in site-packages; those that are not installed are left out."""

SPARE_MIB = 16


def make_project_disk(target: Path, work: Path) -> Path:
    """Write the disk's image. Only root can give the files to root; for others they belong to whoever runs the tests."""
    stage = work / "project"
    for tree in TREES:
        if (REPOSITORY / tree).is_dir():
            shutil.copytree(REPOSITORY / tree, stage / tree, ignore=shutil.ignore_patterns(".*"))
    libraries = Path(next(iter(_site_packages())))
    for name in DISTRIBUTIONS:
        if (libraries / name).is_dir():
            shutil.copytree(libraries / name, stage / name)
        elif (libraries / name).is_file():
            shutil.copy2(libraries / name, stage / name)
    packages = sorted((REPOSITORY / "dist").glob("parties_*.deb"), key=lambda path: path.stat().st_mtime)
    (stage / "packages").mkdir()
    for package in packages[-1:]:
        shutil.copy2(package, stage / "packages" / "parties.deb")
    size = sum(path.stat().st_size for path in stage.rglob("*") if path.is_file())
    mebibytes = int(1.2 * size / (1 << 20)) + SPARE_MIB
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-F", "-d", stage, target, f"{mebibytes}M"], check=True, capture_output=True)
    shutil.rmtree(stage)
    return target


def _site_packages() -> list[str]:
    import click  # noqa: PLC0415 - any library will do to find where they are

    return [str(Path(click.__file__).parents[1])]
