"""The virtual machine for tests: the image, the project's disk, and machines that the tests of a session share."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .image import GuestImage, ImageError, ready_image
from .machine import GuestMachine, GuestOptions
from .project_disk import make_project_disk
from .resctrl_trick import why_not
from .scene import PREPARE

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several workers, what shares a machine goes to one of them."""
    for item in items:
        if item.path.parent == HERE and item.get_closest_marker("xdist_group") is None:
            names = getattr(item, "fixturenames", ())
            item.add_marker(pytest.mark.xdist_group("guest" if "guest" in names else item.path.stem))


@pytest.fixture(scope="session")
def image() -> GuestImage:
    """What the machines boot; skips, with the reason, where it cannot be built."""
    try:
        return ready_image()
    except ImageError as error:
        pytest.skip(f"no virtual machine here: {error}")


@pytest.fixture(scope="session")
def project_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project as it is now, and the package if it was built."""
    directory = tmp_path_factory.mktemp("project")
    return make_project_disk(directory / "project.img", directory)


@pytest.fixture(scope="session")
def guest(image: GuestImage, project_disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuestMachine]:
    """One machine for all the tests that leave it as they found it: acpi-cpufreq, and resctrl where it can be had."""
    options = GuestOptions(frequency=True, resctrl=why_not(image.kernel_version) is None)
    with GuestMachine(image, project_disk, tmp_path_factory.mktemp("guest"), options) as machine:
        state = machine.until_up()
        assert state == "running", state
        machine.shell(PREPARE)
        yield machine


@pytest.fixture(autouse=True)
def _timed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tells how long each test took, since the whole is to stay short."""
    begun = time.monotonic()
    yield
    sys.stderr.write(f"guest: {request.node.name}: {time.monotonic() - begun:.1f} s\n")
