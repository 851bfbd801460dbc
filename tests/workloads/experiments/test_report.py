"""The page of all experiments: whole, self-contained, and safe against whatever stands in a summary."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import fake_experiment
import pytest
from fake_experiment import Heard

from workloads.experiments import report
from workloads.experiments.registry import NAMES
from workloads.experiments.runner import Call, run
from workloads.experiments.store import Store, StoreError

MakeCall = Callable[..., Call]


class Page(HTMLParser):
    """Collects what a browser would load, what is on the page, and whether elements are closed."""

    VOID = frozenset({"meta", "img"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in {"src", "href", "action", "data", "poster", "srcset"}:
                self.loaded.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def page(tmp_path: Path, heard: Heard, call: MakeCall) -> Page:
    """The page of two experiments, one of them with a name of the registry."""
    run([fake_experiment.experiment("fake"), fake_experiment.experiment("emu")], Store(tmp_path), heard, call(quick=True))
    (tmp_path / "other.json").write_text('{"not": "ours"}')
    path = report.write(Store(tmp_path))
    assert path == tmp_path / "report.html"
    return Page(path.read_text())


def test_the_page_loads_nothing_from_elsewhere(page: Page) -> None:
    """Figures are inside the page, links stay on it, and there is neither script nor style sheet to fetch."""
    assert [source[:22] for source in page.loaded if not source.startswith("#")] == ["data:image/png;base64,"] * 2
    assert not {"script", "link", "iframe"} & set(page.tags)
    assert not page.open
    assert not re.search(r"url\(|@import", report.STYLE)


def test_every_experiment_is_on_the_page_in_order(page: Page) -> None:
    """Those of the registry come first, in its order; nothing else that lies in the directory is taken up."""
    assert page.ids == ["emu", "fake"]
    assert {source for source in page.loaded if source.startswith("#")} == {"#emu", "#fake"}
    assert report.in_order(dict.fromkeys(["zzz", *reversed(NAMES)])) == [*NAMES, "zzz"]


def test_paper_and_ours_stand_side_by_side_with_the_reason(page: Page) -> None:
    """A figure that differs says so and why; a quick grid is called one."""
    assert "the sum of <y>4 %2 %differsnot looked into yet" in page.text
    assert "rowssome6holds" in page.text
    assert "2 of 4 of the paper's figures and statements hold here" in page.text
    assert "good for a look, not for claims" in page.text


def test_a_directory_without_experiments_is_a_mistake(tmp_path: Path) -> None:
    """What is missing is told, with the call that makes it."""
    with pytest.raises(StoreError, match="no experiment was run into it; parties experiment all"):
        report.write(Store(tmp_path))
    with pytest.raises(StoreError, match="no such directory"):
        report.write(Store(tmp_path / "none"))


def test_somebody_elses_page_is_not_overwritten(tmp_path: Path, heard: Heard, call: MakeCall) -> None:
    """A report.html that is not from here stays; our own is replaced."""
    run([fake_experiment.experiment()], Store(tmp_path), heard, call())
    (tmp_path / "report.html").write_text("<p>mine</p>")
    with pytest.raises(StoreError, match="not from here"):
        report.write(Store(tmp_path))
    assert (tmp_path / "report.html").read_text() == "<p>mine</p>"
    (tmp_path / "report.html").unlink()
    assert report.write(Store(tmp_path)) == report.write(Store(tmp_path))
