"""The picture of docs/architecture.md, drawn from the imports as they are.

python tests/architecture_picture.py     # writes docs/architecture.svg again
"""

from __future__ import annotations

import ast
import itertools
import textwrap
from collections.abc import Mapping
from html import escape
from pathlib import Path

from test_architecture import MODULES, PLUGINS, ROOT, imported, part

FILE = ROOT / "docs" / "architecture.svg"
BASE = (
    "errors",
    "escaping",
    "random_streams",
    "processes",
    "atomic_files",
    "input_files",
    "config",
    "plugin_files",
    "registry",
)  # the ground
METHODS = "plugins"
WIDTH, HEIGHT, GAP, FLOOR, MARGIN = 196, 62, 26, 40, 16
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #222; } .name { font-weight: 600; font-size: 14px; }
rect { fill: #fff; stroke: #456; } .base { fill: #eef2f6; } .outside { fill: #fff6e5; stroke: #a70; }
path { fill: none; stroke: #456; } .head { fill: #456; stroke: none; }
""".strip()


def dependencies() -> dict[str, set[str]]:
    """Which part of the package imports which; plugins import public names, which are the API's."""
    found: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        if (own := part(module)) not in ("", "__main__"):
            others = {part(m) for m in imported(path, True) if m.split(".")[0] == "flnl_bench"}
            found.setdefault(own, set()).update(others - {own, ""})
    of_plugins = {m for path in PLUGINS for m in imported(path, True) if m.split(".")[0] == "flnl_bench"}
    found[METHODS] = {part(m) or "api" for m in of_plugins}
    return found


def reduced(edges: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Without what follows from other arrows: who imports the engine reaches the API through it."""

    def below(name: str) -> set[str]:
        return edges[name].union(*map(below, edges[name])) if edges[name] else set()

    return {
        name: {other for other in others if not any(other in below(third) for third in others)}
        for name, others in edges.items()
    }


def idea(name: str) -> list[str]:
    """The first words of a part's docstring, in two lines."""
    if name == METHODS:
        text = "methods, ours and others', against public names only"
    else:
        path = MODULES[f"flnl_bench.{name}"]
        text = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n")[0]
    return textwrap.wrap(text.rstrip("."), 28, max_lines=2, placeholder=" …")


def levels(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """Parts above each other: each as high as it can be below all who import it, near to them."""
    importers = {name: [other for other in edges if name in edges[other]] for name in edges}

    hanging = ["cli"]  # what the command line uses hangs below it
    for name in hanging:
        hanging += sorted(edges[name] - set(hanging))

    def depth(name: str) -> int:
        if name not in hanging:  # just above what it imports
            return min(depth(other) for other in edges[name]) - 1
        return max((depth(other) + 1 for other in importers[name] if other in hanging), default=0)

    found: list[list[str]] = [[] for _ in range(1 + max(map(depth, edges)))]
    for name in sorted(edges):
        found[depth(name)].append(name)
    for above, row in itertools.pairwise(found):  # the mean position of who imports, or last
        row.sort(key=lambda name: _mean([above.index(o) / len(above) for o in importers[name] if o in above]))
    return found


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 1.0


def picture() -> str:
    """The SVG."""
    found = dependencies()
    edges = reduced({n: others - set(BASE) for n, others in found.items() if n not in BASE})
    drawn = levels(edges)
    wide = max(map(len, drawn)) * (WIDTH + GAP) - GAP
    boxes = {}
    for i, names in enumerate(drawn):
        left = (wide - len(names) * (WIDTH + GAP) + GAP) / 2
        for j, name in enumerate(names):
            boxes[name] = (MARGIN + left + j * (WIDTH + GAP), MARGIN + i * (HEIGHT + FLOOR))
    bottom = MARGIN + len(drawn) * (HEIGHT + FLOOR)
    shapes = [_arrow(boxes[n], boxes[o]) for n in boxes for o in sorted(edges[n])]
    shapes += [_box(name, *boxes[name]) for name in boxes]
    shapes.append(f'<rect class="base" x="{MARGIN}" y="{bottom}" width="{wide}" height="34" rx="6"/>')
    ground = f"{', '.join(BASE)}: the ground, which all others may use"
    shapes.append(f'<text x="{MARGIN + wide / 2}" y="{bottom + 21}" text-anchor="middle">{ground}</text>')
    size = f"{wide + 2 * MARGIN} {bottom + 34 + MARGIN}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" role="img">\n'
        f"<title>Which part of flnl_bench imports which</title>\n<style>{STYLE}</style>\n"
        '<rect width="100%" height="100%" style="fill: #fff; stroke: none"/>\n'
        + "\n".join(shapes)
        + "\n</svg>\n"
    )


def _box(name: str, x: float, y: float) -> str:
    kind = ' class="outside"' if name == METHODS else ""
    texts = [f'<text class="name" x="{x + 10}" y="{y + 20}">{name}</text>']
    texts += [
        f'<text x="{x + 10}" y="{y + 37 + 15 * i}">{escape(line)}</text>' for i, line in enumerate(idea(name))
    ]
    return f'<rect{kind} x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>' + "".join(texts)


def _arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    """From the lower edge of who imports to the upper edge of what is imported."""
    shift = max(-WIDTH / 3, min(WIDTH / 3, (end[0] - start[0]) / 6))  # arrows of one box leave apart
    x1, y1, x2, y2 = start[0] + WIDTH / 2 + shift, start[1] + HEIGHT, end[0] + WIDTH / 2 - shift, end[1]
    bend = max(FLOOR, (y2 - y1) / 2)
    curve = (
        f'<path d="M{x1:.0f} {y1:.0f} C{x1:.0f} {y1 + bend:.0f} {x2:.0f} {y2 - bend:.0f} {x2:.0f} {y2:.0f}"/>'
    )
    return curve + f'<path class="head" d="M{x2:.0f} {y2:.0f} l-4 -8 h8 z"/>'


if __name__ == "__main__":
    Path(FILE).write_text(picture())
