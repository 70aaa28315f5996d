"""New plugins: a complete package around one working example of a kind."""

from __future__ import annotations

import re
import shutil
from importlib.resources import files
from pathlib import Path

from flnl_bench.errors import BadInput, unknown
from flnl_bench.methods import default_methods

# Of each kind: the table that its names are in, and how an entry called NAME is run.
KINDS = {
    "method": ("methods", "--method NAME --setting sym-1.0"),
    "dataset": ("datasets", "--method fedavg --setting sym-1.0 --dataset NAME"),
    "noise": ("noises", "--method fedavg --setting NAME-1.0"),
    "model": ("models", "--method fedavg --setting sym-1.0 --model NAME"),
    "partition": ("partitions", "--method fedavg --setting sym-1.0 --partition NAME-0.5"),
    "tracker": ("trackers", "--method fedavg --setting sym-1.0 --tracker NAME"),
}


def new_plugin(name: str, kind: str = "method", folder: Path = Path()) -> Path:
    """Write a package called `name` with an example of a kind; everything of it works before it is changed.

    Args:
        name: of the example, of its entry point and of the new folder.
        kind: one of KINDS.
        folder: where the new folder is made.
    """
    if kind not in KINDS:
        raise unknown("kind", kind, KINDS)
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z][a-z0-9]*)*", name):
        raise BadInput(f"{name!r}: expected lower-case words joined by dashes, as in my-{kind}")
    table, options = KINDS[kind]
    if name in default_methods().tables[table]:
        owner = default_methods().tables[table].origin[name]
        raise BadInput(f"there is a {kind} {name!r} already (from {owner!r}); choose another name")
    made = folder / name
    if made.exists():
        raise BadInput(f"{made} is there already")
    partial = folder / f".{name}.part"  # renamed when it is complete
    shutil.rmtree(partial, ignore_errors=True)
    try:
        for path, text in _files(name, kind, options.replace("NAME", name)).items():
            (partial / path).parent.mkdir(parents=True, exist_ok=True)
            (partial / path).write_text(text, encoding="utf-8")
        partial.rename(made)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return made


def _files(name: str, kind: str, options: str) -> dict[str, str]:
    module = f"flnl_{name.replace('-', '_')}"
    title = "".join(word.capitalize() for word in name.split("-"))
    entry = title if kind in ("method", "tracker") else name.replace("-", "_").upper()

    def filled(template: str) -> str:
        text = (files(__package__) / "templates" / template).read_text(encoding="utf-8")
        words = {"flnl_example": module, "OPTIONS": options, "KIND": kind, "ENTRY": entry}
        names = {"example": name, "Example": title, "EXAMPLE": name.replace("-", "_").upper()}
        for old, new in (words | names).items():
            text = text.replace(old, new)
        return text

    return {
        "pyproject.toml": filled("pyproject.txt"),
        "README.md": filled("readme.txt"),
        f"{module}.py": filled(f"{kind}.py"),
        f"tests/test_{module}.py": filled("test.txt"),
    }
