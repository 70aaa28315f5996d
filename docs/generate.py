"""The pages of the site that come from the code: options of commands, methods, names, the Python API.

MkDocs calls the functions `on_…`; mkdocs.yml names this file.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer.main

import flnl_bench
from flnl_bench import methods
from flnl_bench.api import Method
from flnl_bench.assumptions import ASSUMPTIONS
from flnl_bench.cli import app, listing
from flnl_bench.methods import declaration, default_methods, kind_name
from flnl_bench.ranges import ranges_of
from flnl_bench.results.published import published_runs
from flnl_bench.results.run_record import RunRecord
from flnl_bench.running.presets import PRESETS, load_preset
from flnl_bench.testing import CHECKS

ROOT = Path(__file__).parents[1]
OVERVIEW = "methods.md"
API = {
    "Run and compare": "running.api running.saved results.run_record suite.api leaderboards.pandas_api "
    "report.site errors methods",
    "Write a method": "api ranges plugin_files registry",
    "Write another plugin": "data models scenario trackers",
}
MODULES = {  # public modules, shown with all their functions
    "Pictures": "flnl_bench.plots",
    "Numerics of methods": "flnl_bench.numerics",
    "Finding noisy clients": "flnl_bench.noisy_clients",
    "Checks of plugins": "flnl_bench.testing",
}


# -- called by MkDocs --------------------------------------------------------------------------------
def on_config(config: Any) -> Any:
    """Put the pages of all methods below the overview."""
    for section in (section for part in config.nav for section in next(iter(part.values()))):
        if isinstance(section, dict) and isinstance(pages := section.get("Methods"), list):
            pages += [{title: f"methods/{name}.md"} for name, title in in_order()]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages."""
    from mkdocs.structure.files import File

    pages = {"index.md": (ROOT / "README.md").read_text(), "names.md": names_page(), "api.md": api_page()}
    overview = (ROOT / "docs" / OVERVIEW).read_text()
    pages["atlas.md"] = atlas_page(overview)
    pages |= {f"methods/{name}.md": method_page(name, title, overview) for name, title in in_order()}
    for page, text in pages.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Fill in the options of commands, shorten the overview of methods, and redirect links out of docs/."""
    place = page.file.src_uri
    if place == OVERVIEW:
        markdown = overview_page(markdown)
    markdown = re.sub(r"(?m)^<!-- options: (.+) -->$", lambda match: options_table(match[1]), markdown)
    markdown = re.sub(r"(?m)^<!-- parts -->$", lambda match: parts_table(), markdown)
    return redirected(markdown, place)


def redirected(markdown: str, place: str) -> str:
    """Return a page with links to pages of the site; files that are not in it have no link."""
    if place == "index.md":
        markdown = re.sub(r"\]\(docs/", "](", markdown)
        markdown = re.sub(r"<picture>.*?</picture>", both_pictures, markdown, flags=re.S)
    markdown = markdown.replace("](../README.md)", "](index.md)")
    markdown = re.sub(r"\[([a-z-]+\.md)\]\(", lambda match: f"[{title_of(match[1])}](", markdown)
    markdown = re.sub(r"\[([^\]]+)\]\((?:\.\./)?[A-Z]+\.(?:md|cff)\)", r"\1", markdown)
    code = r"\]\(\.\./plugins/\w+/(\w+)\.py\)"
    return re.sub(code, lambda match: f"]({page_of_file(match[1])}#code)", markdown)


def title_of(page: str) -> str:
    """Return the title of a page of docs/."""
    return (ROOT / "docs" / page).read_text().partition("\n")[0].removeprefix("# ")


def both_pictures(match: re.Match[str]) -> str:
    """Return the pictures of a <picture> for the light and the dark pages of the site."""
    dark, light = (address.removeprefix("docs/") for address in re.findall(r'src(?:set)?="(.+?)"', match[0]))
    alt = re.findall(r'alt="(.+?)"', match[0])[0]
    return f"![{alt}]({light}#only-light)\n![{alt}]({dark}#only-dark)"


# -- commands ----------------------------------------------------------------------------------------
def command_of(name: str) -> Any:
    """Return a command by its full name, such as "scenario show"."""
    command: Any = typer.main.get_command(app)
    for word in name.split():
        command = command.commands[word]
    return command


def options_table(name: str) -> str:
    """Return a table of the arguments and options of a command, by the panels of its help."""
    panels: dict[str, list[str]] = {}
    for parameter in command_of(name).params:
        is_option = parameter.opts[0].startswith("-")
        form = ", ".join(f"`{word}`" for word in parameter.opts) if is_option else f"`{parameter.metavar}`"
        if is_option and parameter.metavar and not getattr(parameter, "is_flag", False):
            form += f" {parameter.metavar}"
        panel = getattr(parameter, "rich_help_panel", None) or ("Options" if is_option else "Arguments")
        panels.setdefault(panel, []).append(
            f"| {cell(form)} | {cell(parameter.help or '')} | {default_of(parameter)} |"
        )
    rows = [row for panel, lines in panels.items() for row in (f"| **{panel}** | | |", *lines)]
    return "\n".join(["| option | meaning | default |", "|---|---|---|", *rows])


def default_of(parameter: Any) -> str:
    """Return the default that the help shows, if there is one."""
    shown = parameter.show_default if isinstance(parameter.show_default, str) else parameter.default
    return "" if shown in (None, False, True) or callable(shown) else cell(f"`{shown}`")


def cell(text: str) -> str:
    """Return text for a cell of a table."""
    return text.replace("|", "\\|").replace("\n", " ")


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell(str(value)) for value in line) + " |" for line in lines)


# -- the parts of the package -------------------------------------------------------------------------
def parts_table() -> str:
    """Return a table of the packages and modules of flnl_bench, from their docstrings."""
    rows = []
    for path in sorted((ROOT / "flnl_bench").iterdir()):
        if (path / "__init__.py").is_file():
            inside = [f"`{file.stem}`: {first_line(file)}" for file in sorted(path.glob("[!_]*.py"))]
            rows.append((f"`{path.name}/`", "<br>".join([first_line(path / "__init__.py"), *inside])))
        elif path.suffix == ".py" and not path.name.startswith("_"):
            rows.append((f"`{path.stem}`", first_line(path)))
    return table(("part", "content"), rows)


def first_line(file: Path) -> str:
    """Return the first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n")[0]


# -- methods -----------------------------------------------------------------------------------------
def in_order() -> list[tuple[str, str]]:
    """Return name and title of all methods, in the order of tables."""
    names = sorted(default_methods().methods, key=lambda name: (declaration(name).place, name))
    return [(name, declaration(name).title or name) for name in names]


def page_of_file(module: str) -> str:
    """Return the page of the first method, or variant, that a module defines."""
    for name, cls in default_methods().methods.items():
        classes = [methods.variant_class(cls, variant) for variant in cls.variants]
        if any(c.__module__.endswith(f".{module}") for c in (cls, *classes)):
            return f"methods/{name}.md"
    raise ValueError(f"no method is defined in {module}.py")


def rows_of(overview: str) -> dict[str, list[str]]:
    """Return the cells of each method's row in docs/methods.md, without its name."""
    rows = re.findall(r"^\| `([\w-]+)` \|(.+)\|$", overview, re.M)
    return {name: [part.strip() for part in cells.split(" | ")] for name, cells in rows}


def overview_page(overview: str) -> str:
    """Return docs/methods.md with a short table, and without what the pages of the methods have."""
    titles, rows = dict(in_order()), rows_of(overview)
    short = table(
        ("method", "idea", "reference"),
        [(f"[{titles[name]}](methods/{name}.md)", *rows[name][:2]) for name in titles if name in rows],
    )
    overview = re.sub(r"^M is one model\..*?\n\n", "", overview, flags=re.M | re.S)  # of the columns left out
    text = re.sub(r"^\| method \|.*?\n(?=\n)", lambda _: short + "\n", overview, flags=re.M | re.S)
    return re.split(r"^## Sources", text, flags=re.M)[0]


def atlas_page(overview: str) -> str:
    """Return the page on paper, code and implementation of each method."""
    rows = rows_of(overview)
    lines = []
    for name, title in in_order():
        about = declaration(name)
        own = f". Their own numbers: {about.own_numbers}" if about.own_numbers else ""
        values = (about.code, about.follows, about.checked + own)
        lines.append((f"[{title}](methods/{name}.md)", rows[name][1], *values))
    head = ("method", "paper", "code", "we follow", "checked by")
    about_page = (
        "For each method: its paper, the official code, which of the two ours follows where they differ, "
        "and how ours was checked; the page of the method lists the differences. `make test-slow` runs "
        "the checks that take minutes; the others are in the fast suite."
    )
    return f"---\nhide: [toc]\n---\n\n# Papers and code\n\n{about_page}\n\n{table(head, lines)}"


def sources_of(name: str, overview: str) -> str:
    """Return the section of docs/methods.md on the sources of a method; empty if there is none."""
    for names, text in re.findall(r"^### (.+?)\n(.*?)(?=^##|\Z)", overview, re.M | re.S):
        if name in names.split(", "):
            return str(text).strip()
    return ""


def method_page(name: str, title: str, overview: str) -> str:
    """Return the page of a method."""
    cls = default_methods().methods[name]
    idea, _, sends, passes, differs = rows_of(overview)[name]
    module = inspect.getmodule(cls)
    docstring = inspect.getdoc(module) or ""
    parts = [
        f"# {title}\n\n{idea[:1].upper()}{idea[1:]}. *{cls.reference}.*",
        f"```\nflnl-bench run --method {name} --setting sym-1.0\n```",
        f"## How it works\n\n{inspect.getdoc(cls)}\n\n{as_markdown(docstring)}",
        f"## Hyper-parameters\n\n{hyperparameter_table(name, cls)}",
        variant_table(name, cls),
        "## What it sends and computes\n\n"
        + table(
            ("", "M: one model, C: classes, d: features, T: rounds, E: local epochs"),
            [
                ("sent in addition to FedAvg's M down, M and n_k up", sends),
                ("forward and backward passes per sample; state", passes),
                *([("the FedGR paper's formula", c)] if (c := declaration(name).paper_cost) else []),
                *([("what it assumes", in_words(keys))] if (keys := methods.assumptions_of(name)) else []),
            ],
        ),
        f"## Where it differs from its sources\n\n{differs[:1].upper()}{differs[1:]}.\n\n"
        + sources_of(name, overview).replace("](fedgr.md", "](../fedgr.md"),
        f"## Our numbers\n\n{numbers_of(name)}",
        f"## How it was checked\n\n{checks_of(name, cls)}",
        code_of(name, cls),
    ]
    return "\n\n".join(part for part in parts if part)


def in_words(assumptions: Sequence[str]) -> str:
    """Write the assumptions of a method."""
    return "; ".join(f"it {ASSUMPTIONS[key]} (`{key}`)" for key in assumptions)


def as_markdown(docstring: str) -> str:
    """Return the paragraphs of a module's docstring after its first line, without markup by accident."""
    _, _, rest = docstring.partition("\n\n")
    return re.sub(r"(?<!`)([*_<])(?!`)", r"\\\1", rest).replace("docs/methods.md", "see below")


def hyperparameter_table(name: str, cls: type[Method]) -> str:
    """Return a table of the hyper-parameters of a method: defaults, allowed values, meaning, presets."""
    kinds, ranges, comments = methods.hyperparameters(cls), ranges_of(cls), comments_of(cls)
    defaults = methods.values_of(cls())
    presets = {preset: preset_values(preset, name) for preset in PRESETS}
    rows = [
        (
            f"`{key}`",
            f"`{shown(defaults[key])}`",
            allowed(kind, ranges.get(key)),
            comments.get(key, ""),
            "; ".join(f"{preset}: {values[key]}" for preset, values in presets.items() if key in values),
        )
        for key, kind in kinds.items()
    ]
    if not rows:
        return "None."
    if not any(row[-1] for row in rows):
        return table(("name", "default", "allowed", "meaning"), [row[:-1] for row in rows])
    return table(("name", "default", "allowed", "meaning", "in presets"), rows)


def preset_values(preset: str, name: str) -> dict[str, str]:
    """Return the values that a preset gives to a method, with the data sets that have them."""
    loaded = load_preset(preset)
    sections = {"all data": loaded.default, **loaded.datasets}
    values: dict[str, dict[str, list[str]]] = {}
    for dataset, section in sections.items():
        for key, value in section.get("methods", {}).get(name, {}).items():
            values.setdefault(key, {}).setdefault(shown(value), []).append(dataset)
    return {
        key: ", ".join(f"`{value}` ({', '.join(places)})" for value, places in by_value.items())
        for key, by_value in values.items()
    }


def shown(value: object) -> str:
    """Return a value as it is written after --set."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def allowed(kind: Any, limits: object) -> str:
    """Return the values that a hyper-parameter may have."""
    text = re.sub(r"typing\.|Literal", "", kind_name(kind)).strip("[]").replace("'", "").replace("|", "or")
    if text == "bool":
        return "true, false"
    words = {"int": "whole number", "float": "number"}
    text = words.get(text, re.sub("|".join(words), lambda match: words[match[0]], text))
    return f"{text} {limits}" if limits else text


def comments_of(cls: type) -> dict[str, str]:
    """Return the comment next to each annotated attribute of a class and its parents, or above it."""
    comments: dict[str, str] = {}
    for parent in reversed([c for c in cls.__mro__ if c not in (object, Method) and c.__doc__]):
        lines, _ = inspect.getsourcelines(parent)
        (body,) = ast.parse(textwrap.dedent("".join(lines))).body
        assert isinstance(body, ast.ClassDef)
        for node in body.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                line = lines[(node.end_lineno or node.lineno) - 1]
                above = lines[node.lineno - 2].strip()
                comment = line.partition("  # ")[2] or (above[2:] if above.startswith("# ") else "")
                comments[node.target.id] = comment.strip()
    return comments


def variant_table(name: str, cls: type[Method]) -> str:
    """Return the variants of a method, and the further hyper-parameters of those that are subclasses."""
    if not cls.variants:
        return ""
    own, rows, further = methods.hyperparameters(cls), [], []
    for variant in cls.variants:
        values = methods.variant_values(cls, variant)
        subclass = methods.variant_class(cls, variant)
        changes = {key: value for key, value in values.items() if key in own}
        text = ", ".join(f"`{key}={shown(value)}`" for key, value in changes.items())
        if subclass is not cls:
            first = (inspect.getdoc(subclass) or "").partition("\n")[0]
            text = f"{first} {text}".strip()
            if values.keys() - own.keys():
                further.append(
                    f"### {name}/{variant}\n\nFurther hyper-parameters:\n\n"
                    + hyperparameter_rows(subclass, [key for key in values if key not in own])
                )
        rows.append((f"`{name}/{variant}`", text))
    return "\n\n".join(["## Variants\n\n" + table(("variant", "what it changes"), rows), *further])


def hyperparameter_rows(cls: type[Method], keys: Sequence[str]) -> str:
    """Return a table of some hyper-parameters."""
    kinds, ranges, comments = methods.hyperparameters(cls), ranges_of(cls), comments_of(cls)
    defaults = methods.values_of(cls())
    return table(
        ("name", "default", "allowed", "meaning"),
        [
            (f"`{k}`", f"`{shown(defaults[k])}`", allowed(kinds[k], ranges.get(k)), comments.get(k, ""))
            for k in keys
        ],
    )


@functools.cache
def published() -> list[RunRecord]:
    """Return the published runs."""
    return published_runs()[0]


def numbers_of(name: str) -> str:
    """Return the published results of a method, or say that there are none."""
    runs = [run for run in published() if run.config.method.partition("/")[0] == name]
    if not runs:
        return "There are no published runs of this method yet."
    cells: dict[tuple[str, ...], list[float]] = {}
    for run in runs:
        config = run.config
        key = (config.method, config.dataset, config.partition, config.setting, config.preset)
        if run.last10 is not None:
            cells.setdefault(key, []).append(run.last10)
    rows = [
        (*(f"`{word}`" for word in key), f"{sum(found) / len(found):.2f}", len(found))
        for key, found in sorted(cells.items())
    ]
    head = ("method", "data set", "partition", "setting", "preset", "last-10", "seeds")
    return "Means of the published runs' last-10 accuracy (%).\n\n" + table(head, rows)


def checks_of(name: str, cls: type[Method]) -> str:
    """Return what the tests say about a method."""
    module = cls.__module__.rpartition(".")[2]
    files = sorted((ROOT / "tests").glob(f"test_{module}*.py"))
    golden = (ROOT / "tests" / "golden" / "rounds.json").read_text()
    lines = [f"It passes the {len(CHECKS['method'])} checks of `flnl-bench plugin check {name}`."]
    if f'"{name} ' in golden:
        lines.append(
            "Its numbers are compared with recorded ones, bit by bit on known CPUs (`tests/test_golden.py`)."
        )
    sentences = [test for file in files for test in re.findall(r"^def test_(\w+)", file.read_text(), re.M)]
    text = " ".join(lines)
    if sentences:
        tests = "\n".join(f"    - {sentence.replace('_', ' ')}" for sentence in sentences)
        text += f'\n\n??? note "{len(sentences)} tests of its own"\n\n{tests}'
    return text


def code_of(name: str, cls: type[Method]) -> str:
    """Return the file of a method, which the search leaves out."""
    file = Path(inspect.getfile(cls))
    code = textwrap.indent(file.read_text().strip(), "    ")
    return (
        "## Code { data-search-exclude }\n\n"
        f'??? example "plugins/{file.parent.name}/{file.name}"\n\n    ```python\n{code}\n    ```'
    )


# -- names and the Python API ------------------------------------------------------------------------
def names_page() -> str:
    """Return the page of all names that commands take, and of the values of the presets."""
    parts = [
        "# Names and presets\n\nWhat `flnl-bench list` prints, for the plugins that come with flnl-bench. "
        "[Label noise](noise.md) and [partitions](partitions.md) explain theirs."
    ]
    for title, rows in (
        ("Settings", listing._settings()),
        ("Partitions", listing._partitions()),
        ("Data sets", listing._datasets()),
        ("Networks", listing._models()),
        ("Suites", listing._suites()),
        ("Trackers", listing._trackers()),
    ):
        lines = [(f"`{row['name']}`", with_options(row)) for row in rows]
        parts.append(f"## {title}\n\n{table(('name', 'description'), lines)}")
    return "\n\n".join([*parts, *preset_sections()])


def with_options(row: Mapping[str, Any]) -> str:
    """Return the description of an entry, and its options."""
    return str(row["description"]) + "".join(f"<br>option {text}" for text in row.get("options", ()))


def preset_sections() -> Iterator[str]:
    """Yield a section for each preset, with the protocol of each data set."""
    for preset in listing._presets():
        protocols = {f"`{name}`": values for name, values in preset["protocols"].items()}
        first = next(iter(protocols.values()))
        differ = [key for key in first if len({str(values[key]) for values in protocols.values()}) > 1]
        same = [f"`{key}` = {shown(value)}" for key, value in first.items() if key not in differ]
        rows = [(name, *(shown(values[key]) for key in differ)) for name, values in protocols.items()]
        yield (
            f"## Preset {preset['name']}\n\n{preset['description']}\n\n{table(('data set', *differ), rows)}"
            f"\n\nThe same for all data sets: {', '.join(same)}."
        )


def api_page() -> str:
    """Return the page of all public names, by what they are for."""
    parts = [
        "# Python API\n\nAll public names, from the docstrings. [Work in a notebook](python.md) and "
        "[Your own method](writing-a-method.md) show how to use them."
    ]
    left = dict(flnl_bench._NAMES)
    for title, modules in API.items():
        names = [name for module in modules.split() for name in left.pop(f"flnl_bench.{module}").split()]
        parts.append(f"## {title}\n\n" + "\n\n".join(f"::: flnl_bench.{name}" for name in names))
    if left:
        raise ValueError(f"docs/generate.py: no section of the API page has {', '.join(left)}")
    for title, module in MODULES.items():
        options = "    options:\n      show_root_heading: false\n      show_root_toc_entry: false"
        parts.append(f"## {title}\n\n`{module}`\n\n::: {module}\n{options}")
    return "\n\n".join(parts)
