"""Plugins in plain Python files, which need no packaging: the files in use, and their import."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from flnl_bench.errors import BadInput

VARIABLE = "FLNL_PLUGINS"  # paths as in PATH; child processes inherit it
API_VERSION = 2  # of the plugin API; raised when a plugin for the new version cannot work with the old one
WANTED = "flnl_api"  # the attribute of a plugin that names its API version


def files_in_use() -> list[Path]:
    """Return the absolute paths of this process's plugin files, each once."""
    names = filter(None, os.environ.get(VARIABLE, "").split(os.pathsep))
    return list(dict.fromkeys(Path(name).expanduser().absolute() for name in names))


def use_files(files: Iterable[Path]) -> None:
    """Add plugin files to this process and its child processes."""
    files = [file.expanduser().absolute() for file in files]
    for file in files:
        if not file.exists():
            raise BadInput(f"plugin {file}: there is no such file")
        if not file.is_file() or file.suffix != ".py" or os.pathsep in str(file):
            raise BadInput(f"plugin {file}: expected a Python file, as in mine.py")
    os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys(map(str, [*files_in_use(), *files])))


def import_all() -> None:
    """Import all plugin files: unpickling in a worker needs their classes."""
    for file in files_in_use():
        try:
            import_file(file)
        except KeyboardInterrupt:
            raise
        except BaseException:  # the parent process has reported it
            continue


def import_file(file: Path) -> ModuleType:
    """Import a plugin file; it is run again only if its content has changed."""
    name = module_name(file)
    content, known = file.read_bytes(), sys.modules.get(name)
    first = next((other for other in files_in_use() if module_name(other) == name), file)
    if first != file:
        raise BadInput(f"{first} is a plugin of the same name; rename one of them")
    if known and known.__file__ == str(file) and loaded_digest(file) == _digest(content):
        return known
    check_api(wanted_api(content, str(file)))
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__dict__["__digest__"] = _digest(content)
    sys.modules[name] = module
    try:
        # The loader may take an older compiled version of a file that was just edited.
        with contextlib.redirect_stdout(sys.stderr):  # stdout is for results
            exec(compile(content, str(file), "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _digest(content: bytes) -> str:
    """Return a digest of code that does not depend on its line endings."""
    return hashlib.blake2b(content.replace(b"\r\n", b"\n"), digest_size=8).hexdigest()


def loaded_digest(file: Path) -> str | None:
    """Return the digest of a plugin file when it was imported; None if it is not imported."""
    return getattr(sys.modules.get(module_name(file)), "__digest__", None)


def module_name(file: Path) -> str:
    """Return the module name of a plugin file."""
    return f"flnl_plugin_{re.sub(r'[^0-9A-Za-z_]', '_', file.stem)}"


# -- the version of the API --------------------------------------------------------------------------
def wanted_api(content: bytes, file: str) -> object:
    """Read the API version that a file asks for without running it; 1 if it names none."""
    for node in ast.parse(content, file).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == WANTED for target in targets):
            assert isinstance(node, ast.Assign)
            return ast.literal_eval(node.value) if isinstance(node.value, ast.Constant) else None
    return 1


def check_api(wanted: object) -> None:
    """Refuse a plugin for a newer version of the API."""
    if type(wanted) is not int or wanted < 1:
        raise BadInput(f"{WANTED} is {wanted!r}, but must be a whole number from 1")
    if wanted > API_VERSION:
        here = f"this flnl-bench has version {API_VERSION}: update it"
        raise BadInput(f"it needs version {wanted} of the plugin API, but {here}")
