"""How the kernel reads numbers and sets of CPUs from text, and how it prints them; with its errors."""

from __future__ import annotations

import errno
import os
import re

_WORD_DIGITS = 8  # of 32 bits
_DIGITS = {10: re.compile(r"\+?[0-9]+\n?"), 16: re.compile(r"\+?(0[xX])?[0-9a-fA-F]+\n?")}


def refusal(number: int, path: str = "") -> OSError:
    """The error of a refused operation."""
    return OSError(number, os.strerror(number), path)


def parse_number(text: str, base: int) -> int | None:
    """A number as ``kstrtoul`` takes it: no spaces, one newline at most at the end. None where it refuses."""
    return int(text.strip("+\n"), base) if _DIGITS[base].fullmatch(text) else None


def parse_pid(text: str) -> int | None:
    """A thread number as ``kstrtoint`` with base 0 takes it: decimal, octal or hexadecimal. None where it refuses."""
    text = text.removesuffix("\n")
    if not re.fullmatch(r"[+-]?(0[xX][0-9a-fA-F]+|[0-9]+)", text):
        return None
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("+-")
    if digits[:2] in {"0x", "0X"}:
        return sign * int(digits, 16)
    try:
        return sign * int(digits, 8 if digits.startswith("0") and len(digits) > 1 else 10)
    except ValueError:
        return None


def parse_cpu_list(text: str, limit: int = 1 << 13) -> frozenset[int]:
    """A list such as ``0-3,8``. Raises OSError: EINVAL, ERANGE past the kernel's number of CPUs."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        if not part:
            continue
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if match is None:
            raise refusal(errno.EINVAL)
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise refusal(errno.EINVAL)
        if last >= limit:
            raise refusal(errno.ERANGE)
        cpus.update(range(first, last + 1))
    return frozenset(cpus)


def parse_cpu_mask(text: str, limit: int = 1 << 13) -> frozenset[int]:
    """A mask such as ``ff,00000003``; commas at the ends do no harm. Raises OSError: EINVAL, EOVERFLOW past the number of CPUs."""
    words = [word for word in re.split(r"[\s,]+", text) if word]
    if any(re.fullmatch(r"[0-9a-fA-F]+", word) is None for word in words):
        raise refusal(errno.EINVAL)
    if any(len(word) > _WORD_DIGITS for word in words):
        raise refusal(errno.EOVERFLOW)
    value = 0
    for word in words:
        value = value << 32 | int(word, 16)
    if value >> limit:
        raise refusal(errno.EOVERFLOW)
    return frozenset(cpu for cpu in range(value.bit_length()) if value >> cpu & 1)


def format_cpu_list(cpus: frozenset[int]) -> str:
    """As ``%*pbl`` prints: ``0-3,8``."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and parts[-1][1] == cpu - 1:
            parts[-1][1] = cpu
        else:
            parts.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def format_cpu_mask(cpus: frozenset[int], possible: int) -> str:
    """As ``%*pb`` prints for so many possible CPUs: 32-bit words, the first one as short as the number allows."""
    value = sum(1 << cpu for cpu in cpus)
    first = (possible - 1) % 32 // 4 + 1
    text = f"{value & 0xFFFFFFFF:08x}"
    words = [f"{value >> 32 * index & 0xFFFFFFFF:08x}" for index in range((possible - 1) // 32, -1, -1)] or [text]
    words[0] = words[0][-first:]
    return ",".join(words)
