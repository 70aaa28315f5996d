"""`plugin new`: write a complete package with a working example of a method, data set and so on."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

from flnl_bench.atomic_files import partial_folder
from flnl_bench.errors import BadInput, unknown
from flnl_bench.methods import default_methods

# For each kind: its registry, and the options of `run` for an entry called NAME.
PLUGIN_KINDS = {
    "method": ("methods", "--method NAME --setting sym-1.0"),
    "dataset": ("datasets", "--method fedavg --setting sym-1.0 --dataset NAME"),
    "noise": ("noises", "--method fedavg --setting NAME-1.0"),
    "model": ("models", "--method fedavg --setting sym-1.0 --model NAME"),
    "partition": ("partitions", "--method fedavg --setting sym-1.0 --partition NAME-0.5"),
    "tracker": ("trackers", "--method fedavg --setting sym-1.0 --tracker NAME"),
}


def new_plugin(name: str, kind: str = "method", folder: Path = Path()) -> Path:
    """Write a package with an example of a kind, and return its folder; the example works unchanged.

    Args:
        name: of the example, its entry point and its folder.
        kind: one of PLUGIN_KINDS.
        folder: the parent of the new folder.
    """
    if kind not in PLUGIN_KINDS:
        raise unknown("kind", kind, PLUGIN_KINDS)
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z][a-z0-9]*)*", name):
        raise BadInput(f"{name!r}: expected lower-case words joined by dashes, as in my-{kind}")
    table, options = PLUGIN_KINDS[kind]
    if name in default_methods().tables[table]:
        owner = default_methods().tables[table].origin[name]
        raise BadInput(f"the {kind} {name!r} exists already (from {owner!r}); choose another name")
    package = folder / name
    if package.exists():
        raise BadInput(f"{package} exists already")
    with partial_folder(package) as partial:
        for path, text in _files(name, kind, options.replace("NAME", name)).items():
            (partial / path).parent.mkdir(parents=True, exist_ok=True)
            (partial / path).write_text(text, encoding="utf-8")
        partial.rename(package)
    return package


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
