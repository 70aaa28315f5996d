"""Plugins in plain Python files, which need no packaging: which ones are in use, and importing them."""

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

VARIABLE = "FLNL_PLUGINS"  # paths as in PATH; an environment variable reaches all processes that are started
API_VERSION = 2  # of what plugins may rely on; raised when a plugin for the new one cannot work with the old
WANTED = "flnl_api"  # the attribute of a plugin that names the version it was written for


def files_in_use() -> list[Path]:
    """The plugin files of this process, as given, without repetition."""
    names = filter(None, os.environ.get(VARIABLE, "").split(os.pathsep))
    return list(dict.fromkeys(Path(name).expanduser().absolute() for name in names))


def use_files(files: Iterable[Path]) -> None:
    """Add plugin files to those of this process and of the processes that it will start."""
    files = [file.expanduser().absolute() for file in files]
    for file in files:
        if not file.exists():
            raise BadInput(f"plugin {file}: there is no such file")
        if not file.is_file() or file.suffix != ".py" or os.pathsep in str(file):
            raise BadInput(f"plugin {file}: expected a Python file, as in mine.py")
    os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys(map(str, [*files_in_use(), *files])))


def import_all() -> None:
    """Have the modules of all plugin files: what was pickled elsewhere needs the classes defined there."""
    for file in files_in_use():
        try:
            import_file(file)
        except (Exception, SystemExit):  # told by the process that asked for it
            continue


def import_file(file: Path) -> ModuleType:
    """The module of a plugin file; it is run again only if its content has changed."""
    name = module_name(file)
    content, known = file.read_bytes(), sys.modules.get(name)
    first = next((other for other in files_in_use() if module_name(other) == name), file)
    if first != file:
        raise BadInput(f"{first} is a plugin of the same name; rename one of them")
    if known and known.__file__ == str(file) and loaded_digest(file) == digest(content):
        return known
    check_api(wanted_api(content, str(file)))
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__dict__["__digest__"] = digest(content)
    sys.modules[name] = module
    try:
        # Not by the loader, which may take an older compiled version of a file that was just edited.
        with contextlib.redirect_stdout(sys.stderr):  # what it prints is no result
            exec(compile(content, str(file), "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def digest(content: bytes) -> str:
    """A digest of code, whatever its line endings."""
    return hashlib.blake2b(content.replace(b"\r\n", b"\n"), digest_size=8).hexdigest()


def loaded_digest(file: Path) -> str | None:
    """The digest of a plugin file as it was when it was imported; None if it is not."""
    return getattr(sys.modules.get(module_name(file)), "__digest__", None)


def module_name(file: Path) -> str:
    """The name of the module of a plugin file."""
    return f"flnl_plugin_{re.sub(r'[^0-9A-Za-z_]', '_', file.stem)}"


# -- the version of the API --------------------------------------------------------------------------
def wanted_api(content: bytes, file: str) -> object:
    """What a file says about the version of the API, without running it; 1 if it says nothing."""
    for node in ast.parse(content, file).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == WANTED for target in targets):
            assert isinstance(node, ast.Assign)
            return ast.literal_eval(node.value) if isinstance(node.value, ast.Constant) else None
    return 1


def check_api(wanted: object) -> None:
    """Refuse a plugin that was written for another version of the API."""
    if type(wanted) is not int or wanted < 1:
        raise BadInput(f"{WANTED} is {wanted!r}, but must be a whole number from 1")
    if wanted > API_VERSION:
        here = f"this flnl-bench has version {API_VERSION}: update it"
        raise BadInput(f"it needs version {wanted} of the plugin API, but {here}")
