import json
from pathlib import Path

import pytest

from tests.emulation.answers.perform import Step, differences, perform
from tests.emulation.resctrl import ResctrlOptions, mounted_resctrl

ANSWERS = Path(__file__).parent / "answers"


def options_of(document: dict[str, Step]) -> ResctrlOptions:
    given = dict(document["options"])
    given["domains"] = {int(domain): cpus for domain, cpus in given["domains"].items()}
    return ResctrlOptions(**given)


@pytest.mark.emulation
@pytest.mark.parametrize("name", [file.name for file in sorted(ANSWERS.glob("resctrl-*.json"))])
def test_the_emulation_answers_as_the_kernel_did(name: str, fuse: None, tmp_path: Path) -> None:
    """Every step that was recorded on a real kernel gets the same error, status and text from the emulation."""
    document = json.loads((ANSWERS / name).read_text())
    if present := [tid for tid in document.get("absent_threads", []) if Path(f"/proc/{tid}").exists()]:
        pytest.skip(f"thread {present[0]}, which the recording takes to be absent, exists here just now")
    told = []
    with mounted_resctrl(tmp_path / "resctrl", options_of(document)) as resctrl:
        for step in document["steps"]:
            told += differences(step, perform(step, resctrl.path))
    assert told == []


def test_a_difference_is_told() -> None:
    """The comparison would tell another error, status or text; "any" stands for any failure, not for success."""
    recorded = {"do": "write", "path": "schemata", "data": "x", "errno": "any", "status": "ok"}
    assert differences(recorded, {"errno": "EINVAL", "status": "ok"}) == []
    assert "errno None" in differences(recorded, {"errno": None, "status": "ok"})[0]
    assert "status 'bad'" in differences(recorded, {"errno": "EIO", "status": "bad"})[0]
    assert "reads '1'" in differences({"do": "read", "path": "size", "reads": "2"}, {"errno": None, "reads": "1"})[0]
