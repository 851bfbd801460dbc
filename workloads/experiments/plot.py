"""What the figures have in common: panels, heat maps, and a file that is the same for the same figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

DPI = 110
SERVICE_COLOURS = {
    "memcached": "tab:blue",
    "xapian": "tab:orange",
    "nginx": "tab:green",
    "moses": "tab:red",
    "mongodb": "tab:purple",
    "sphinx": "tab:brown",
}
MANAGER_COLOURS = {"unmanaged": "tab:gray", "heracles": "tab:orange", "parties": "tab:blue", "oracle": "black"}
TITLES = {"mongodb": "MongoDB", "nginx": "NGINX", "parties": "PARTIES", "emu": "EMU"}
NONE_GREY = (0.85, 0.85, 0.85, 1.0)  # of a cell that is not served
Colour = tuple[float, float, float, float]
DARK_BELOW = 0.5  # of a colour's luminance: text on it is white

Cells = Mapping[tuple[int, int], float | None]
"""Values by column and row, as their labels are counted; None is a cell that was looked at and not served."""


def title_of(name: str) -> str:
    """A name as it is written in the paper; a second tenant of a service keeps its number."""
    base, _, number = name.partition("-")
    return TITLES.get(base, base.capitalize()) + (f" {number}" if number else "")


def figure_of(rows: int, columns: int, *, width: float = 3.2, height: float = 2.9) -> tuple[Figure, list[list[Axes]]]:
    """A figure of so many panels. Drawn without a display."""
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    return figure, [list(line) for line in axes]


def save(figure: Figure, path: Path) -> None:
    """Write a PNG. Raises OSError."""
    figure.savefig(path, dpi=DPI)


def heat_map(  # noqa: PLR0913 - what is drawn, and how
    axes: Axes,
    cells: Cells,
    columns: Sequence[float],
    rows: Sequence[float],
    *,
    limits: tuple[float, float],
    colours: str = "viridis",
    form: str = "{:.0f}",
) -> None:
    """Cells with their values in them, the first row at the bottom; what is not served is grey, what was not measured white."""
    low, high = limits
    shade, norm = colormaps[colours], Normalize(low, high)
    for (column, row), value in cells.items():
        colour = NONE_GREY if value is None else shade(norm(value))
        axes.fill(
            [column - 0.5, column + 0.5, column + 0.5, column - 0.5], [row - 0.5, row - 0.5, row + 0.5, row + 0.5], color=colour
        )
        if value is not None and form:
            ink = "white" if _luminance(colour) < DARK_BELOW else "black"
            axes.text(column, row, form.format(value), ha="center", va="center", fontsize=6.5, color=ink)
    axes.set_xticks(range(len(columns)), [f"{label:g}" for label in columns], fontsize=7)
    axes.set_yticks(range(len(rows)), [f"{label:g}" for label in rows], fontsize=7)
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(-0.5, len(rows) - 0.5)
    axes.tick_params(length=0)


def load_map(  # noqa: PLR0913 - what is drawn, and how
    axes: Axes, cells: Cells, across: Sequence[float], up: Sequence[float], *, title: str, names: tuple[str, str]
) -> None:
    """A heat map of largest loads in percent over the loads of two services, ``names`` on the x and the y axis."""
    heat_map(axes, cells, across, up, limits=(0, 100))
    axes.set_title(title, fontsize=9)
    axes.set_xlabel(f"{title_of(names[0])} (%)", fontsize=8)
    axes.set_ylabel(f"{title_of(names[1])} (%)", fontsize=8)
    axes.label_outer()


def _luminance(colour: Colour) -> float:
    """How bright a colour is to the eye, 0 to 1 (ITU-R BT.601)."""
    red, green, blue, _ = colour
    return 0.299 * red + 0.587 * green + 0.114 * blue
