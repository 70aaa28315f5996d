"""Pages, help texts, messages and docstrings are plain English, without the words of a list."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("results/*.md"), *ROOT.glob("examples/*")]
SOURCES = [
    path
    for folder in ("flnl_bench", "plugins", "benchmarks", "docs", "examples")
    for path in (ROOT / folder).rglob("*.py")
]
DIALECT = {  # what is written, and what to write
    r"anew": "again",
    r"beside": "next to",
    r"mend(s|ed|ing)?": "fix",
    r"(is|are|be|were|was) told(?! apart)": "is known, is reported",
    r"tells? of": "reports, warns about",
    r"(clients?|images?|times?|MB|megabytes|mixture|passes|numbers?|\d) a (round|client|sample|visit)"
    r"(?! (of|after|by|in|that|has|is|with)\b)": "per round",
    r"once a (round|visit)": "once per round",
    r"plays?|played|playing": "run",
    r"(when|if) (it|they) lies?": "when it is out of date",
    r"go(es)? on|went on": "continue, resume",
    r"the house|of the house": "the package",
    r"of one's own": "your own",
    r"but for": "except for",
    r"nothing but": "only",
    r"whoever": "anyone who",
    r"likewise": "also",
    r"strangers?": "others, third parties",
    r"torn": "incomplete, damaged",
    r"at every moment": "always",
    r"aside from": "except for",
    r"stand(s)? (together|alone|beside)": "is",
    r"first design": "the reader does not know it",
}
FOUND = re.compile("|".join(rf"\b(?:{word})\b" for word in DIALECT), re.IGNORECASE)


def without_code(page: str) -> str:
    return re.sub(r"^```.*?^```|`[^`\n]+`", "", page, flags=re.M | re.S)


def texts_of(source: str) -> list[str]:
    """The strings of a module that people read: docstrings, help texts, messages."""
    strings = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    return [text for text in strings if isinstance(text, str) and " " in text]


def hits(path: Path) -> list[str]:
    """The words of the dialect in a file, with the words around them."""
    text = path.read_text()
    parts = texts_of(text) if path.suffix == ".py" else [without_code(text)]
    found = [(part, match) for part in parts for match in FOUND.finditer(part)]
    return [
        f"{path.relative_to(ROOT)}: {' '.join(part[max(0, match.start() - 40) : match.end() + 20].split())}"
        for part, match in found
    ]


@pytest.mark.parametrize("files", [PAGES, SOURCES], ids=["pages", "code"])
def test_no_text_has_a_word_of_the_dialect(files):
    found = [hit for path in files if path.is_file() and path.name != "CHANGELOG.md" for hit in hits(path)]
    assert found == [], f"see DIALECT in {Path(__file__).name} for what to write"
