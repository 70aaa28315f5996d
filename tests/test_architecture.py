"""The tree shows the architecture: imports go one way, plugins use the public face, light stays light."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from benchmarks.structure import defined_twice

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "flnl_bench"
SOURCES = sorted(PACKAGE.rglob("*.py"))
PLUGINS = sorted(path for path in (ROOT / "plugins").rglob("*.py") if not path.name.startswith("test_"))
PACKS = ("flnl_methods", "flnl_more")

# A part may import itself and what stands on a line above its own. Imports for type checkers do not count.
LAYERS = (
    {"errors", "random_streams", "processes", "escaping", "assumptions", "engine.ledger"},
    {"atomic_files", "input_files", "plugin_files", "ranges"},
    {"registry", "config"},
    {"data", "trackers"},
    {"scenario", "models"},
    {"numerics"},
    {"api", "noisy_clients"},
    {"methods", "engine", "results"},
    {"running", "method_facts"},
    {"testing", "scaffold"},
    {"leaderboards"},
    {"suite", "observations", "doctor", "verification"},
    {"plots", "report"},
    {"cli"},
    {"__main__"},
)
OWN_LAYER = ("engine.ledger",)  # modules that stand lower than their package
LIGHT = (
    "cli",
    "methods",
    "method_facts",
    "registry",
    "config",
    "data",
    "scenario",
    "models",
    "leaderboards",
    "suite",
)
LIGHT_FILES = (
    "flnl_bench.results.run_record",
    "flnl_bench.results.run_folder",
    "flnl_bench.results.archive",
    "flnl_bench.results.published",
    "flnl_bench.running.resolve",
    "flnl_bench.running.presets",
    "flnl_bench.running.api",
    "flnl_bench.running.result",
)
HEAVY = {"torch", "torchvision", "pandas", "sklearn", "scipy", "matplotlib", "ray"}


def for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def imports(node: ast.AST, *, inside_functions: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    """The import statements below a node that run."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif for_type_checkers(child):
            continue
        elif inside_functions or not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from imports(child, inside_functions=inside_functions)


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in SOURCES}


@cache
def imported(path: Path, inside_functions: bool) -> tuple[str, ...]:
    """The modules that a file imports, by their full names."""
    found: list[str] = []
    for statement in imports(ast.parse(path.read_text()), inside_functions=inside_functions):
        if isinstance(statement, ast.Import):
            found += [alias.name for alias in statement.names]
            continue
        assert statement.level == 0, f"{path}: a relative import"
        inner = [f"{statement.module}.{alias.name}" for alias in statement.names]
        found += [name if name in MODULES else str(statement.module) for name in inner]
    return tuple(found)


def part(module: str) -> str:
    """The file or folder of the package that a module belongs to; empty for the package itself."""
    return next((name for name in OWN_LAYER if module == f"flnl_bench.{name}"), [*module.split("."), ""][1])


def layer(name: str) -> int:
    (number,) = [i for i, names in enumerate(LAYERS) if name in names]
    return number


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_imports_go_one_way(path):
    own = part(module_name(path))
    if not own:
        return  # the public face, which imports on first use
    others = {part(m) for m in imported(path, inside_functions=True) if m.split(".")[0] == "flnl_bench"}
    upwards = {other for other in others - {own, ""} if layer(other) >= layer(own)}
    assert not upwards, f"{path.name} is below {upwards}"


def test_every_part_has_its_layer():
    parts = {part(module) for module in MODULES} - {""}
    assert parts <= set().union(*LAYERS)


def test_the_recorder_knows_no_loop_and_no_part_knows_the_methods():
    for path in SOURCES:
        names = imported(path, inside_functions=True)
        assert not any(name.startswith(PACKS) for name in names), path
        if part(module_name(path)) in ("results", "leaderboards"):
            assert "engine" not in map(part, names), path


def public_names() -> set[str]:
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    (block,) = filter(for_type_checkers, tree.body)
    return {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}


@pytest.mark.parametrize("path", PLUGINS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_plugins_use_public_names_only(path):
    for statement in imports(ast.parse(path.read_text()), inside_functions=True):
        if isinstance(statement, ast.Import):
            assert not any(alias.name.startswith("flnl_bench") for alias in statement.names)
        elif statement.module == "flnl_bench":
            assert {alias.name for alias in statement.names} <= public_names()
        elif str(statement.module).startswith("flnl_bench"):
            assert statement.module in ("flnl_bench.numerics", "flnl_bench.noisy_clients")


@pytest.mark.parametrize("path", PLUGINS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_methods_do_not_import_each_other(path):
    """What two methods need is in public modules; a variant's file imports the file of its method."""
    if path.name == "__init__.py":
        return
    for name in imported(path, inside_functions=True):
        pack, _, module = name.partition(".")
        if pack in PACKS:
            assert pack == path.parent.name
            file = path.parent / f"{module.partition('.')[0]}.py"
            assert path.stem.startswith(f"{file.stem}_") or "(Method)" not in file.read_text()


def test_every_pack_is_looked_at():
    assert {path.parent.name for path in PLUGINS} == set(PACKS)


def test_dir_lists_the_public_names_which_exist_and_which_type_checkers_see():
    import flnl_bench

    assert dir(flnl_bench) == flnl_bench.__all__
    assert set(dir(flnl_bench)) == public_names()
    for name in dir(flnl_bench):
        assert getattr(flnl_bench, name) is not None


@pytest.mark.parametrize("name", ["_private", "no_such_name", "torch"])
def test_nothing_else_is_public(name):
    import flnl_bench

    with pytest.raises(AttributeError, match=name):
        getattr(flnl_bench, name)


@pytest.mark.parametrize("package", ["flnl_bench", *(f"plugins/{pack}" for pack in PACKS)])
def test_packages_tell_type_checkers_that_they_are_typed(package):
    assert (ROOT / package / "py.typed").is_file()


@pytest.mark.parametrize(
    "module", [m for m in MODULES if part(m) in LIGHT or m in LIGHT_FILES or m == "flnl_bench"]
)
def test_what_answers_at_once_imports_nothing_heavy(module):
    if part(module) == "models" and module != "flnl_bench.models":
        return  # the networks themselves
    todo, seen = [module], set()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in MODULES:
            todo += imported(MODULES[name], inside_functions=False)
            todo += [name.rpartition(".")[0]] if "." in name else []  # its package runs first
    heavy = {name.split(".")[0] for name in seen} & HEAVY
    assert not heavy


def test_a_public_name_has_one_meaning():
    assert defined_twice() == {}


def test_the_picture_of_the_documentation_is_that_of_the_imports():
    from architecture_picture import FILE, picture

    assert FILE.read_text() == picture(), "draw it anew: python tests/architecture_picture.py"
