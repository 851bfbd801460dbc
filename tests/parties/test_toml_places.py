"""Keys are found on their lines, whatever the TOML around them looks like."""

from __future__ import annotations

import tomllib

import pytest

from parties.toml_places import Path, TomlPlaces

TEXT = '''# interval = "1s"
version = 1

text = """
fake = 1
[fake]
""" # [fake]
list = [
    "a]", # ]
    "b",
]
nested = [
[ "fake" ],
["version"]
]
[node.cores] # cores
  reserved = "0"
'quoted.key' = {x = [1, 2], y = "}"}
[[service]]
name = "a"
minimum.cores = "1 core"

[[service]]
name = "b"
[service.maximum]
cores = "2 cores"
[[service.part]]
x = "[[service]]"
[[service.part]]
x = 2
'''


@pytest.mark.parametrize(
    ("path", "starts"),
    [
        (("version",), "version"),
        (("list",), "list"),
        (("nested",), "nested"),
        (("node",), None),
        (("node", "cores"), "[node.cores]"),
        (("node", "cores", "reserved"), "  reserved"),
        (("node", "cores", "step"), "[node.cores]"),
        (("node", "cores", "quoted.key", "x"), "'quoted.key'"),
        (("service", 0, "name"), 'name = "a"'),
        (("service", 0, "minimum", "cores"), "minimum.cores"),
        (("service", 0, "target"), "[[service]]"),
        (("service", 1, "name"), 'name = "b"'),
        (("service", 1, "maximum", "cores"), 'cores = "2 cores"'),
        (("service", 1, "part", 1, "x"), "x = 2"),
        (("fake",), None),
    ],
)
def test_finds_lines(path: Path, starts: str | None) -> None:
    """Each key is found on the line that it begins, an absent one on that of its table."""
    tomllib.loads(TEXT)
    line = TomlPlaces(TEXT).line(path)
    assert (line is None) == (starts is None)
    assert starts is None or (line is not None and TEXT.splitlines()[line - 1].startswith(starts))


def test_windows_line_ends_count_once() -> None:
    """A file from an editor that ends lines with CR LF has the same line numbers."""
    assert TomlPlaces(TEXT.replace("\n", "\r\n")).line(("service", 1, "name")) == TomlPlaces(TEXT).line(("service", 1, "name"))
