"""Fill the tables of README.md and docs/baselines.md by the commands that they name (`-m benchmarks.pages`).

A command on its own line is followed by its whole output, and a command in a sentence only by titles and
tables; both end at END.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "baselines.md")
END = "<!-- end of the tables -->"
FILLED = re.compile(
    rf"(flnl-bench (leaderboard --with-published [^`\n]*--format md)(`:|\n```)\n\n).*?(?={END})", re.DOTALL
)


def main() -> None:
    """Rewrite the tables of all pages."""
    for page in PAGES:
        text = page.read_text()
        page.write_text(filled(text, printed))


def filled(page: str, run: Callable[[list[str]], str]) -> str:
    """Return the page with the output of `run` for the arguments of each of its commands."""

    def fill(match: re.Match[str]) -> str:
        before, command, ending = match.groups()
        tables = run(shlex.split(command))
        return before + (brief(tables) if ending == "`:" else f"{tables.strip()}\n\n")

    return FILLED.sub(fill, page)


def brief(tables: str) -> str:
    """Return titles, in bold, and tables without notes."""
    titles = re.sub(r"(?m)^#+ (.*)$", r"**\1**", tables)
    kept = [part for part in titles.split("\n\n") if part.startswith(("**", "| "))]
    return "".join(f"{part.strip()}\n\n" for part in kept)


def printed(arguments: list[str]) -> str:
    """Return the output of the command, without the user's runs."""
    command = [sys.executable, "-m", "flnl_bench", *arguments]
    return subprocess.run(command, cwd=ROOT / "docs", check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main()
