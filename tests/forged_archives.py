"""Archives of one run, taken apart and put together again with other content."""

from __future__ import annotations

import io
import json
import lzma
import zipfile

import numpy as np

from flnl_bench.results.archive import Group, _packed
from flnl_bench.results.run_folder import rounds_text

LINE, LAYOUT, DATA = "runs.jsonl.xz", "data/0.json.xz", "data/0.bin.xz"
PARTS = ("run.json", "rounds.jsonl", "beliefs.npz")


def npz(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def members_of(file):
    """The files in the zip file, unpacked."""
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    return {name: lzma.decompress(data) if name.endswith(".xz") else data for name, data in members.items()}


def write_members(file, members, compress=lzma.compress):
    """Write such files; `members` may be pairs, so that a name can be there twice."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items() if isinstance(members, dict) else members:
            data = data.encode() if isinstance(data, str) else data
            archive.writestr(name, compress(data) if name.endswith(".xz") else data)


def with_part(members, part, new):
    """Replace a file of the run; `new` may be a function of the old content."""
    group = Group(json.loads(members[LAYOUT]), 1, members[DATA])
    parts = {
        "run.json": members[LINE].decode(),
        "rounds.jsonl": rounds_text(group.rounds(0)),
        "beliefs.npz": npz(**group.beliefs.read(0)),
    }
    parts[part] = new(parts[part]) if callable(new) else new
    rows = [json.loads(line) for line in parts["rounds.jsonl"].splitlines()]
    with np.load(io.BytesIO(parts["beliefs.npz"])) as file:
        layout, data = _packed([(None, rows, dict(file))])
    return {**members, LINE: parts["run.json"].strip() + "\n", LAYOUT: layout, DATA: data}
