"""An ACPI table that gives the guest's processors frequencies, so that the kernel's own acpi-cpufreq takes hold of them.

QEMU offers none. The table names one I/O port as control and status register of every processor; QEMU's test device answers there
and keeps what is written to it. The real speed does not change.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

FREQUENCIES_MHZ = (2201, *range(2200, 1199, -100))  # the first is turbo, as firmware writes it
PORT = 0xE0  # of pc-testdev; readable and writable


def frequency_table(directory: Path, *, cpus: int) -> Path:
    """Compile the table into the directory. Raises CalledProcessError where the compiler refuses it."""
    source = directory / "ssdt.asl"
    source.write_text(_source(cpus))
    compiler = shutil.which("iasl")
    assert compiler is not None
    subprocess.run([compiler, "-p", str(directory / "ssdt"), str(source)], capture_output=True, check=True)
    return directory / "ssdt.aml"


def _source(cpus: int) -> str:
    names = [f"\\_SB.CPUS.C{cpu:03X}" for cpu in range(cpus)]
    externals = "".join(f"  External ({name}, DeviceObj)\n" for name in names)
    scopes = "".join(f"  Scope ({name})\n  {{\n{_processor(cpu)}  }}\n" for cpu, name in enumerate(names))
    return f'DefinitionBlock ("", "SSDT", 2, "PARTIE", "PSTATES", 1)\n{{\n{externals}{scopes}}}\n'


def _processor(cpu: int) -> str:
    register = f"ResourceTemplate () {{ Register (SystemIO, 16, 0, 0x{PORT:X}) }}"
    states = ",\n".join(
        f"      Package (6) {{ {mhz}, {10 * mhz}, 10, 10, 0x{number:x}, 0x{number:x} }}"
        for number, mhz in enumerate(FREQUENCIES_MHZ)
    )
    return (
        f"    Name (_PCT, Package () {{ {register}, {register} }})\n"
        f"    Name (_PSS, Package () {{\n{states} }})\n"
        "    Name (_PPC, 0)\n"
        f"    Name (_PSD, Package () {{ Package (5) {{ 5, 0, {cpu}, 0xFD, 1 }} }})\n"
    )
