"""What the virtual machine boots: a Debian kernel, a small initramfs and a root file system, built once and kept.

They are kept under a name that is a hash of the recipe, so that a changed recipe is built anew. By hand:
``python -m tests.guest.image`` builds and tells where it is, ``--rebuild`` does so even where it exists.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

RELEASE = "bookworm"
KERNEL = "linux-image-cloud-amd64"  # a metapackage: what it depends on is the newest kernel
KERNEL_PREFIX = "linux-image-6.1."
PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "udev", "kmod", "procps", "python3", "iproute2", "linux-cpupower", "intel-cmt-cat"),
    *("libcgroup2", "memcached", "nginx-light"),
    *("busybox-static", "containerd", "crun", "docker.io", "lxc", "podman"),
)
ROOT_MIB = 1536
TOOLS = ("qemu-system-x86_64", "qemu-img", "mmdebstrap", "busybox", "cpio", "gzip", "mke2fs", "dpkg-deb")
MODULES = ("virtio_pci", "virtio_blk", "virtio_console")  # that the root file system and the agent need; what they need is found
MASKED = (
    *("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer", "e2scrub_reap.service"),
    *(
        "fstrim.timer",
        "systemd-timesyncd.service",
        "systemd-networkd.service",
        "systemd-resolved.service",
        "systemd-pstore.service",
    ),
    *("memcached.service", "nginx.service", "getty@tty1.service", "serial-getty@ttyS0.service", "systemd-logind.service"),
    *(
        "systemd-udev-trigger.service",
        "systemd-sysusers.service",
        "systemd-tmpfiles-setup-dev.service",
        "kmod-static-nodes.service",
    ),
    *(
        "systemd-modules-load.service",
        "systemd-random-seed.service",
        "systemd-update-utmp.service",
        "systemd-user-sessions.service",
    ),
    *("systemd-journal-flush.service", "systemd-binfmt.service", "proc-sys-fs-binfmt_misc.automount", "dev-hugepages.mount"),
    *("dev-mqueue.mount", "sys-kernel-config.mount", "sys-kernel-tracing.mount", "sys-fs-fuse-connections.mount"),
    *("containerd.service", "docker.service", "docker.socket", "lxc.service", "lxc-monitord.service", "lxc-net.service"),
    *("podman.service", "podman.socket", "podman-auto-update.service", "podman-auto-update.timer", "podman-restart.service"),
    *("cni-dhcp.service", "cni-dhcp.socket"),
    *(f"modprobe@{module}.service" for module in ("configfs", "dm_mod", "drm", "efi_pstore", "fuse", "loop")),
)
"""What a start does not need here; each unit costs up to a second under software emulation."""

INIT = """\
#!/bin/busybox sh
B=/bin/busybox
$B mkdir -p /proc /sys /dev /newroot
$B mount -t devtmpfs d /dev; $B mount -t proc p /proc; $B mount -t sysfs s /sys
for module in {modules}; do $B insmod /modules/$module.ko; done
for attempt in 1 2 3 4 5 6 7 8 9 10; do [ -b /dev/vda ] && break; $B sleep 0.2; done
$B mount -t ext4 /dev/vda /newroot || echo "no root file system"
$B mount -t ext4 -o ro /dev/vdb /newroot/opt/project || echo "no project"
$B umount /proc /sys; $B mount --move /dev /newroot/dev
exec $B switch_root /newroot /sbin/init
"""

FSTAB = """\
/dev/vda / ext4 defaults,noatime 0 0
"""

BLACKLIST = "".join(f"blacklist {module}\n" for module in ("kvm_amd", "kvm_intel", "aesni_intel", "sha512_ssse3", "sha256_ssse3"))

AGENT_UNIT = """\
[Unit]
Description=Runs what the host asks for
[Service]
ExecStart=/usr/bin/python3 -S /opt/project/tests/guest/agent.py
KillMode=process
OOMScoreAdjust=-1000
[Install]
WantedBy=multi-user.target
"""


class ImageError(Exception):
    """The image cannot be built here: what is missing, and what to do."""


@dataclass(frozen=True, slots=True)
class GuestImage:
    """The three files, and which kernel package they hold (name and version)."""

    directory: Path
    kernel_package: str
    kernel_version: str

    @property
    def kernel(self) -> Path:
        return self.directory / "vmlinuz"

    @property
    def initrd(self) -> Path:
        return self.directory / "initrd.gz"

    @property
    def root(self) -> Path:
        return self.directory / "root.img"


def cache_directory() -> Path:
    """Where images are kept: ``$PARTIES_CACHE/guest``, else below ``~/.cache``."""
    return Path(os.environ.get("PARTIES_CACHE") or Path.home() / ".cache" / "parties") / "guest"


def recipe_key() -> str:
    """A hash of all that the image depends on, but for what Debian offers on the day."""
    parts = [RELEASE, KERNEL, KERNEL_PREFIX, PACKAGES, ROOT_MIB, MODULES, MASKED, INIT, FSTAB, BLACKLIST, AGENT_UNIT, _HOOK]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def ready_image(*, rebuild: bool = False) -> GuestImage:
    """The image, built first where it does not exist. Raises ImageError."""
    place = cache_directory() / recipe_key()
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if rebuild:
            shutil.rmtree(place, ignore_errors=True)
        if not (place / "manifest.json").exists():
            _check_tools()
            _build(place)
    manifest = json.loads((place / "manifest.json").read_text())
    return GuestImage(place, manifest["kernel_package"], manifest["kernel_version"])


def _check_tools() -> None:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise ImageError(f"not installed: {', '.join(missing)}; as root: workloads/install-packages.sh guest")
    if os.geteuid() != 0:
        raise ImageError("the image can only be built by root; as root: make test-guest, or python -m tests.guest.image")


def _build(place: Path) -> None:
    scratch = Path(tempfile.mkdtemp(prefix="building-", dir=place.parent))
    try:
        root = scratch / "root"
        with _step(f"fetching Debian {RELEASE} with {len(PACKAGES)} packages and a kernel"):
            _run("mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(PACKAGES)}", *_options(), RELEASE, str(root))
        package, version = _take_kernel(root, scratch)
        with _step(f"setting up the root file system with {package} {version}"):
            _configure(root)
            _run("mke2fs", "-q", "-t", "ext4", "-F", "-d", str(root), str(scratch / "root.img"), f"{ROOT_MIB}M")
        with _step("packing the initramfs"):
            _pack_initramfs(root, scratch / "initrd.gz", scratch / "initramfs")
        for name in ("root", "kernel", "initramfs"):
            shutil.rmtree(scratch / name)
        (scratch / "manifest.json").write_text(json.dumps({"kernel_package": package, "kernel_version": version}))
        shutil.rmtree(place, ignore_errors=True)
        scratch.rename(place)
    except OSError as error:
        raise ImageError(f"the image could not be written below {place.parent}: {error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


_FIND = f"s/.*Depends: \\({KERNEL_PREFIX}.*-cloud-amd64\\).*/\\1/p"
_HOOK = (
    f'set -e; cd root; name=$(apt-cache depends {KERNEL} | sed -n "{_FIND}" | head -n 1); '
    f'[ -n "$name" ] || {{ echo "apt offers no {KERNEL_PREFIX}*-cloud-amd64" >&2; exit 1; }}; apt-get -qq download "$name"'
)


def _options() -> Sequence[str]:
    return (
        '--aptopt=Acquire::Languages "none"',
        "--dpkgopt=path-exclude=/usr/share/doc/*",
        "--dpkgopt=path-exclude=/usr/share/man/*",
        "--dpkgopt=path-exclude=/usr/share/locale/*",
        f"--customize-hook=chroot \"$1\" sh -c '{_HOOK}'",
    )


def _take_kernel(root: Path, scratch: Path) -> tuple[str, str]:
    """Unpack the kernel's package into the root; its name and version."""
    [package] = (root / "root").glob("linux-image-*.deb")
    fields = [_run("dpkg-deb", "-f", str(package), field).strip() for field in ("Package", "Version")]
    _run("dpkg-deb", "-x", str(package), str(scratch / "kernel"))
    package.unlink()
    [kernel] = (scratch / "kernel/boot").glob("vmlinuz-*")
    shutil.move(kernel, scratch / "vmlinuz")
    shutil.move(scratch / "kernel/lib/modules", root / "usr/lib/modules")
    _run("chroot", str(root), "/usr/sbin/depmod", kernel.name.removeprefix("vmlinuz-"))
    return fields[0], fields[1]


def _configure(root: Path) -> None:
    system = root / "etc/systemd/system"
    (system / "multi-user.target.wants").mkdir(parents=True, exist_ok=True)
    (root / "opt/project").mkdir(parents=True)
    (root / "etc/fstab").write_text(FSTAB)
    (root / "etc/modprobe.d/guest.conf").write_text(BLACKLIST)
    (root / "etc/hostname").write_text("guest\n")
    (root / "etc/machine-id").write_text(hashlib.sha256(b"parties guest").hexdigest()[:32] + "\n")
    (system / "agent.service").write_text(AGENT_UNIT)
    (system / "multi-user.target.wants/agent.service").symlink_to("/etc/systemd/system/agent.service")
    for unit in MASKED:
        (system / unit).unlink(missing_ok=True)
        (system / unit).symlink_to("/dev/null")


def _pack_initramfs(root: Path, target: Path, work: Path) -> None:
    (work / "bin").mkdir(parents=True)
    (work / "modules").mkdir()
    busybox = shutil.which("busybox")
    assert busybox is not None
    shutil.copy2(busybox, work / "bin/busybox")
    modules = _modules_in_order(next((root / "usr/lib/modules").iterdir()))
    for path in modules:
        shutil.copy2(path, work / "modules" / path.name)
    (work / "init").write_text(INIT.format(modules=" ".join(path.stem for path in modules)))
    (work / "init").chmod(0o755)
    _run("sh", "-c", f"cd {work} && find . | cpio --quiet -o -H newc | gzip -1 > {target}")


def _modules_in_order(directory: Path) -> list[Path]:
    """The files of MODULES and of what they need, each after what it needs."""
    lines = (line.partition(":") for line in (directory / "modules.dep").read_text().splitlines())
    needs = {Path(file).stem: (directory / file, other.split()) for file, _, other in lines}
    ordered: list[Path] = []
    for name in MODULES:
        file, others = needs[name]
        ordered += [path for path in (*(directory / other for other in reversed(others)), file) if path not in ordered]
    return ordered


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = "\n".join((done.stderr or done.stdout).splitlines()[-12:])
        raise ImageError(f"{command[0]} failed with exit code {done.returncode}:\n{last}")
    return done.stdout


@contextlib.contextmanager
def _step(words: str) -> Iterator[None]:
    print(f"guest: {words} ...", end="", file=sys.stderr, flush=True)  # noqa: T201 - minutes pass, somebody waits
    begun = time.monotonic()
    try:
        yield
    finally:
        print(f" {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)  # noqa: T201


if __name__ == "__main__":
    try:
        print(ready_image(rebuild="--rebuild" in sys.argv[1:]).directory)  # noqa: T201
    except ImageError as error:
        sys.exit(f"guest: {error}")
