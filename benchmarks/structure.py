"""Count what a newcomer must learn: files, lines, record classes, names with two meanings, type errors.

python -m benchmarks.structure            # counts
python -m benchmarks.structure --names    # also every public name that two modules define
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "flnl_bench").rglob("*.py"))
RECORDS = ("RunOptions", "RunConfig", "RunRecord", "PlannedRun")  # all classes that describe a run


def public_definitions(path: Path) -> Iterator[str]:
    """Yield the public names that a module defines at its top level, without those that it imports."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign):
            names = [
                leaf.id for target in node.targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name)
            ]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names = [node.target.id]
        else:
            continue
        yield from (name for name in names if not name.startswith("_"))


def defined_twice() -> dict[str, list[str]]:
    """Return the modules of every public name that more than one module defines; templates do not count."""
    modules = defaultdict(list)
    for path in SOURCES:
        if "templates" not in path.parts:
            for name in {*public_definitions(path)} - {"TYPE_CHECKING"}:  # type checkers know this name
                modules[name].append(path.relative_to(ROOT).with_suffix("").as_posix().replace("/", "."))
    return {name: places for name, places in sorted(modules.items()) if len(places) > 1}


def strict_errors() -> int:
    """Return the number of errors of `mypy --strict`."""
    command = [sys.executable, "-m", "mypy", "--strict"]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    return sum(": error:" in line for line in lines)


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--names", action="store_true", help="list the names that two modules define")
    parser.add_argument("--no-types", action="store_true", help="leave out mypy, which takes a minute")
    arguments = parser.parse_args()
    twice = defined_twice()
    classes = {name for path in SOURCES for name in public_definitions(path)}
    counts = {
        "files": len(SOURCES),
        "lines": sum(len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES),
        "record classes about a run": sum(name in classes for name in RECORDS),
        "public names": sum(len(set(public_definitions(path))) for path in SOURCES),
        "public names defined twice": len(twice),
    }
    if not arguments.no_types:
        counts["errors of mypy --strict"] = strict_errors()
    for what, count in counts.items():
        print(f"{what:<28} {count:>7,}")
    for name, places in twice.items() if arguments.names else ():
        print(f"{name}: {', '.join(places)}")


if __name__ == "__main__":
    main()
