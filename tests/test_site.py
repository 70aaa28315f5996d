"""The documentation site: a strict build, no request to other hosts, no broken link."""

import inspect
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from docs.generate import overview_page
from flnl_bench import __all__ as public_names
from flnl_bench import noisy_clients, numerics
from flnl_bench.methods import default_methods

ROOT = Path(__file__).parents[1]
LOADING = {
    "script": "src",
    "link": "href",
    "img": "src",
    "source": "srcset",
    "iframe": "src",
    "form": "action",
}
LINKS_OF_NO_FILE = {"canonical", "next", "prev"}


class Page(HTMLParser):
    """What a page loads, where its links lead, and the names that others can link to."""

    def __init__(self, text: str):
        super().__init__()
        self.loads, self.links, self.ids = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.ids.add(values.get("id"))
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        elif (address := values.get(LOADING.get(tag))) and values.get("rel") not in LINKS_OF_NO_FILE:
            self.loads.append(address)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Every page of the site by its path."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stderr
    return {
        str(path.relative_to(folder)): Page(path.read_text())
        for path in folder.rglob("*.html")
        if path.name != "404.html"  # its links begin at the root of a server
    }, folder


def functions_of(module) -> list[str]:
    """The public functions that a module defines."""
    functions = inspect.getmembers(module, inspect.isfunction)
    return [name for name, f in functions if f.__module__ == module.__name__ and name[0] != "_"]


def words(page: str) -> int:
    """The words of a page, without code, generated tables, addresses and symbols."""
    generated = r"<!-- table.*?<!-- end of the table -->"
    text = re.sub(rf"^```.*?^```|{generated}|<!--.*?-->|\]\([^)]*\)", "", page, flags=re.M | re.S)
    return sum(bool(re.search(r"[^\W\d_]{2}", word)) for word in text.split())


def test_the_pages_are_short():
    pages = {path.name: path.read_text() for path in (ROOT / "docs").glob("*.md")}
    overview = overview_page(pages["methods.md"])  # the rest is on the pages of the methods
    pages["methods.md"] = re.sub(r"(?m)^\| \[.*$", "", overview)
    assert words((ROOT / "README.md").read_text()) < 700
    assert sum(map(words, pages.values())) < 20_000


def test_every_method_and_every_public_name_has_its_place(site):
    pages, _ = site
    assert {f"methods/{name}.html" for name in default_methods().methods} <= pages.keys()
    names = [f"flnl_bench.{name}" for name in public_names]
    names += [f"{m.__name__}.{name}" for m in (numerics, noisy_clients) for name in functions_of(m)]
    assert set(names) <= pages["api.html"].ids


def test_a_page_loads_nothing_from_other_hosts(site):
    pages, folder = site
    outside = {(name, address) for name, page in pages.items() for address in page.loads if "//" in address}
    assert outside == set()
    styles = "".join(path.read_text() for path in folder.rglob("*.css"))
    assert re.findall(r"(?:url\(|@import\s)[\"']?(?:https?:)?//[^)\"']*", styles) == []


def test_every_link_leads_to_a_page_and_a_place_on_it(site):
    pages, folder = site
    broken = []
    for name, page in pages.items():
        for address in (*page.links, *page.loads):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            path = os.path.normpath(os.path.join(name, "..", unquote(parts.path))) if parts.path else name
            known = parts.fragment == "" or path not in pages or unquote(parts.fragment) in pages[path].ids
            if not ((folder / path).is_file() and known):
                broken.append((name, address))
    assert broken == []
