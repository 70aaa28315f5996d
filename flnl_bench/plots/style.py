"""One look for all pictures: a colour and a marker for each method, panels, legends, files."""

from __future__ import annotations

import hashlib
import io
import math
import re
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

from flnl_bench.atomic_files import replace_file
from flnl_bench.errors import BadInput, unknown
from flnl_bench.methods import declaration

try:
    import matplotlib
    from matplotlib.figure import Figure as BareFigure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
except ImportError:
    raise BadInput("plots need matplotlib: pip install 'flnl-bench[plot]'") from None

P = ParamSpec("P")
Drawn = TypeVar("Drawn")

# Okabe and Ito's colours, their yellow darkened for white paper, with a grey and Tol's wine. Markers separate
# methods in black and white, and for colour-blind readers.
COLOURS = (
    *("#000000", "#8c8c8c", "#e69f00", "#56b4e9", "#009e73"),
    *("#cc79a7", "#0072b2", "#882255", "#a39300", "#d55e00"),
)
DIVERGED = "✗"  # after a number or on a curve: a loss is not finite
CLEAN, WRONG, NEUTRAL = "#0072b2", "#d55e00", "#8c8c8c"
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "*", "h")
DASHES = ("-", "--", "-.", ":")

RC = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
    "savefig.dpi": 150,
    "pdf.fonttype": 42,  # TrueType: publishers refuse Type 3
    "svg.hashsalt": "flnl-bench",  # the same file for the same runs
}
ENDINGS = (".png", ".svg", ".pdf")
LONGEST = 44  # characters of a name
MOST_PANELS = 24
MOST_LINES = 12  # in one panel
PER_INCH = 13  # characters of a title or legend
WIDTHS = {"column": 3.25, "page": 6.75}  # of a two-column paper, in inches
NARROWEST = 2.1  # inches of a panel
_width: ContextVar[float | None] = ContextVar("width", default=None)


class Look(NamedTuple):
    """How a method is drawn."""

    colour: str
    marker: str
    dash: str


def look_of(name: str) -> Look:
    """Return the look of a method, variant or row of a table, which is the same in every picture.

    The method declares it. The digest of the name selects what is not declared, so two names may look alike.
    Another version of a method, as in "fedgr v2", differs only in its dashes.
    """
    version = re.search(r" v(\d+)$", name)
    name = name[: version.start()] if version else name
    place = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest())
    colours = COLOURS[2:]  # black and grey are FedAvg and the control
    place %= len(colours) * len(MARKERS) * len(DASHES)
    lap = place // len(colours)
    declared = declaration(name)
    dash = DASHES.index(declared.dash) if declared.dash else lap
    later = int(version[1]) - 1 if version else 0
    return Look(
        declared.colour or colours[place % len(colours)],
        declared.marker or MARKERS[(place + lap) % len(MARKERS)],
        DASHES[(dash + later) % len(DASHES)],
    )


def looks_of(names: Iterable[str]) -> dict[str, Look]:
    """Return the looks of all methods of a figure; a method that would look like another gets a free marker.

    Declared looks are never changed, and versions of one method share colour and marker.
    """
    looks: dict[str, Look] = {}
    owners: dict[tuple[str, str], str] = {}  # colour and marker → method without its version
    for name in sorted(dict.fromkeys(names), key=lambda name: not declaration(name).marker):
        look, method = look_of(name), re.sub(r" v\d+$", "", name)
        place = MARKERS.index(look.marker) if look.marker in MARKERS else 0
        for marker in (look.marker, *MARKERS[place + 1 :], *MARKERS[:place]):
            if owners.get((look.colour, marker), method) == method:
                break
        owners[look.colour, marker] = method
        looks[name] = look._replace(marker=marker)
    return looks


def label_text(name: object, longest: int = LONGEST) -> str:
    """Return a name that matplotlib shows as it is: no formula, no line break, no leading underscore."""
    text = "".join("\ufffd" if unicodedata.category(c)[0] == "C" else c for c in str(name))
    text = text if len(text) <= longest else text[: longest - 1] + "…"
    return (" " if text.startswith("_") else "") + text.replace("$", r"\$")


# -- figures -----------------------------------------------------------------------------------------
class Figure(BareFigure):
    """A figure that a notebook shows, with or without pyplot."""

    def _repr_png_(self) -> bytes:
        return as_bytes(self, "png")


def in_style(draw: Callable[P, Drawn]) -> Callable[P, Drawn]:
    """Draw with our settings and not with those of the user's matplotlibrc."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Drawn:
        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(RC)
            return draw(*args, **kwargs)

    return drawn


def for_paper() -> bool:
    """Return whether figures are drawn in the size of a paper."""
    return _width.get() is not None


@contextmanager
def paper_size(name: str) -> Iterator[None]:
    """Draw figures as wide as a column or a page of a two-column paper: `with paper_size("column"):`."""
    if name not in WIDTHS:
        raise unknown("size", name, WIDTHS)
    token = _width.set(WIDTHS[name])
    try:
        yield
    finally:
        _width.reset(token)


def check_lines(count: int) -> None:
    """Refuse a panel with more lines than can be read."""
    if count > MOST_LINES:
        raise BadInput(
            f"a panel would have {count} lines, at most {MOST_LINES} can be read; choose some by --method"
        )


def canvas(
    panels: int,
    *,
    columns: int = 3,
    size: tuple[float, float] = (3.1, 2.5),
    fixed: bool = False,
    **share: Any,
) -> tuple[Figure, list[Any]]:
    """Make a figure with this number of panels and no empty ones; `fixed` keeps the number of columns."""
    if panels > MOST_PANELS:
        raise BadInput(
            f"this would be {panels} panels, at most {MOST_PANELS} can be read; choose some by method, "
            "dataset, partition, setting or seed"
        )
    columns, width = min(columns, panels), _width.get()
    if width:
        if fixed and width < columns * NARROWEST * 0.75:
            raise BadInput(
                f"{columns} panels do not fit next to each other; use --size page, or leave it out"
            )
        columns = columns if fixed else max(1, min(columns, int(width / NARROWEST)))
        size = (width / columns, size[1] * min(1.0, width / columns / size[0] + 0.15))
    rows = math.ceil(panels / columns)
    figsize = (width or max(4.4, columns * size[0]), rows * size[1])
    figure = Figure(figsize=figsize, layout=ConstrainedLayoutEngine(w_pad=0.08))
    axes = list(figure.subplots(rows, columns, squeeze=False, **share).flat)
    for spare in axes[panels:]:
        spare.remove()
    for axis in axes[max(0, panels - columns) : panels]:
        axis.tick_params(labelbottom=True)  # where the panel below was removed
    return figure, axes[:panels]


def titled_canvas(
    names: Sequence[tuple[str, ...]], ylabel: str | None = None, **layout: Any
) -> tuple[Figure, list[Any]]:
    """Make a panel for each name; its title has the parts that differ, the head of the figure the others."""
    figure, axes = canvas(len(names), **layout)
    common, titles = titles_of(names)
    for axis, title in zip(axes, titles, strict=True):
        set_title(axis, title)
        if ylabel and axis.get_subplotspec().is_first_col():
            axis.set_ylabel(ylabel)
    head(figure, common)
    return figure, axes


def set_title(axis: Any, title: str) -> None:
    """Write the title of a panel in as many lines as it needs."""
    figure, columns = axis.figure, axis.get_subplotspec().get_gridspec().ncols
    width = max(12, int(PER_INCH * figure.get_figwidth() / columns) - 2)  # the axis has labels on its left
    lines = textwrap.wrap(label_text(title, 200), width)
    axis.set_title("\n".join(lines))
    if axis.get_subplotspec().is_first_col():
        _grow(figure, max(0, len(lines) - 1))


def titles_of(parts: Sequence[tuple[str, ...]]) -> tuple[str, list[str]]:
    """Return the parts that all names have in common as one text, and the other parts of each name."""
    common = [values[0] if len(set(values)) == 1 else None for values in zip(*parts, strict=True)]
    own = [
        " · ".join(part for part, shared in zip(name, common, strict=True) if shared is None)
        for name in parts
    ]
    return " · ".join(part for part in common if part), own


def cross_on(axis: Any, x: float, y: float) -> Any:
    """Draw the cross of a diverged run over a point of a curve."""
    (cross,) = axis.plot(x, y, "x", color=WRONG, markersize=8, markeredgewidth=2, linestyle="", zorder=5)
    return cross


def head(figure: Figure, text: str) -> None:
    """Write the text that all panels share above them."""
    lines = textwrap.wrap(label_text(text, 400), int(PER_INCH * figure.get_figwidth()))
    figure.suptitle("\n".join(lines), fontsize=9)
    _grow(figure, len(lines))


def legend(figure: Figure, entries: Mapping[str, Any], spacing: float = 0.5) -> None:
    """Write all entries below the panels, in as many columns as fit."""
    names = [label_text(name) for name in entries]
    width = PER_INCH * figure.get_figwidth()
    columns = max(1, min(len(names), int(width / (6 + max(map(len, names))))))
    handles = list(entries.values())
    place = {"loc": "outside lower center", "ncols": columns, "labelspacing": spacing}
    figure.legend(handles, names, fontsize=8, **place)
    _grow(figure, math.ceil(len(names) / columns) * (0.6 + spacing))


def _grow(figure: Figure, lines: float) -> None:
    """Make the figure higher by lines of text, so that the panels keep their size."""
    figure.set_figheight(figure.get_figheight() + 0.18 * lines)


@in_style
def as_bytes(figure: Figure, kind: str) -> bytes:
    """Return the picture as a file of this kind; the same runs give the same bytes."""
    buffer = io.BytesIO()
    stamp = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    figure.savefig(buffer, format=kind, metadata=stamp)
    return buffer.getvalue()


def check_file(path: Path) -> None:
    """Refuse a file that could not be written, before anything is drawn."""
    if path.suffix.lower() not in ENDINGS:
        raise unknown("ending", path.suffix, ENDINGS, f"the file name {path.name!r}")
    if not path.parent.is_dir():
        raise BadInput(f"there is no folder {path.parent} to write {path.name} into")


def save(figure: Figure, path: str | Path) -> Path:
    """Write PNG, SVG or PDF, by the ending of the file's name."""
    path = Path(path)
    check_file(path)
    replace_file(path, as_bytes(figure, path.suffix[1:].lower()))
    return path


def listed(names: Sequence[object]) -> str:
    """Write the first eight names of an error message."""
    shown = ", ".join(map(str, names[:8]))
    return f"{shown}, …" if len(names) > 8 else shown
