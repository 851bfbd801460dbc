import json
from pathlib import Path

import pytest

from tests.emulation.answers.perform import differences, perform
from tests.emulation.cpufreq import CpufreqOptions, mounted_cpufreq

ANSWERS = Path(__file__).parent / "answers"


@pytest.mark.emulation
@pytest.mark.parametrize("name", [file.name for file in sorted(ANSWERS.glob("cpufreq-*.json"))])
def test_the_emulation_answers_as_acpi_cpufreq_did(name: str, fuse: None, tmp_path: Path) -> None:
    """Every step that was recorded on the kernel's own driver gets the same error and text from the emulation."""
    document = json.loads((ANSWERS / name).read_text())
    told = []
    with mounted_cpufreq(tmp_path / "cpu", CpufreqOptions(**document["options"])) as cpu:
        for step in document["steps"]:
            told += differences(step, perform(step, cpu.path))
    assert told == []
