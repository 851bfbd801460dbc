"""Makes the kernel believe that its processor has Intel's cache allocation, so that it offers its own resctrl file system.

QEMU's processors have no such feature, and the kernel looks for it once while it boots. A debugger stops it there, sets the
feature's bit, and writes the answer of the CPUID leaf: 20 ways, 16 classes of service, the two topmost ways shared with I/O.
Nothing is really divided, but every name, error and rule is the kernel's. The addresses hold for one build of the kernel, without
address space randomisation (``nokaslr``).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

WAYS = 20
CLASSES = 16
SHAREABLE = 0xC0000
RDT_A = 47  # the feature's bit in the capability words 8 and 9, taken as one


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the debugger takes hold, in one build of the kernel."""

    late_init: int  # resctrl_late_init
    capabilities: int  # boot_cpu_data's capability words 8 and 9
    has_cat_returns: int  # the return of rdt_cpu_has(CAT_L3)
    after_cpuid: int  # in rdt_get_cache_alloc_cfg; on the stack: eax, edx, ebx


KNOWN = {
    "6.1.192-2": Addresses(0xFFFFFFFF83065147, 0xFFFFFFFF82C36328, 0xFFFFFFFF83065251, 0xFFFFFFFF819C9B4C),
}


def why_not(kernel_version: str) -> str | None:
    """Why the kernel's resctrl cannot be had, or None."""
    if kernel_version in KNOWN:
        return None
    return (
        f"the kernel's resctrl: where to take hold is known for linux {', '.join(KNOWN)} only, and the image has {kernel_version}"
    )


def debugger_script(kernel_version: str, socket: Path) -> str:
    """What gdb is to do while the kernel boots."""
    at = KNOWN[kernel_version]
    return f"""\
set pagination off
set confirm off
set architecture i386:x86-64
set tcp connect-timeout 30
target remote {socket}
hbreak *{at.late_init:#x}
continue
set *(unsigned long*){at.capabilities:#x} = *(unsigned long*){at.capabilities:#x} | (1UL<<{RDT_A})
hbreak *{at.has_cat_returns:#x}
continue
set $rax=1
hbreak *{at.after_cpuid:#x}
continue
set *(int*)($rsp)={WAYS - 1}
set *(int*)($rsp+4)={CLASSES - 1}
set *(int*)($rsp+8)={SHAREABLE:#x}
delete
detach
"""
