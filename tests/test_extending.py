"""The examples of docs/writing-a-*.md, installed as a stranger's package."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from command_line import TINY

from flnl_bench import registry

DOCS = Path(__file__).parents[1] / "docs"
PAGES = [DOCS / f"writing-a-{kind}.md" for kind in ("noise", "partition", "dataset", "model", "tracker")]
SNIPPETS = [re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S) for page in PAGES]
EXAMPLES = [snippets[0] for snippets in SNIPPETS]


EXTRAS = {
    "dataset": "bars",
    "partition": "giant-0.5",
    "setting": "dim-1.0",
    "model": "mlp",
}
SUITE = """
methods = ["fedavg"]
datasets = ["bars"]
partitions = ["giant-0.5"]
settings = ["dim-1.0"]
[training]
model = "mlp"
rounds = 3
clients = 4
epochs = 1
samples = 200
fraction = 0.5
"""
CALLS = """
import json, sys
from flnl_bench.cli import main

for arguments in json.loads(sys.argv[1]):
    try:
        main([*arguments, "--json"])
    except SystemExit as end:
        print("exit code", end.code)
"""


@pytest.fixture(scope="module")
def outside(tmp_path_factory):
    """The answers of three commands in a process for which the plugin of the page is installed."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "flnl_bench_extras.py").write_text("\n".join(EXAMPLES))
    about = folder / "flnl_bench_extras-0.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: flnl-bench-extras\nVersion: 0.1\n")
    (about / "entry_points.txt").write_text("[flnl_bench]\nextras = flnl_bench_extras\n")
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    (folder / "extras.toml").write_text(SUITE)
    options = [part for name, value in EXTRAS.items() for part in (f"--{name}", value)]
    commands = [
        ["list", "plugins"],
        ["suite", folder / "extras.toml", "--jobs", "1", "--out", folder / "suite"],
        [
            "run",
            "--method",
            "fedavg",
            *options,
            *TINY,
            "--workers",
            "2",
            "--tracker",
            "diary",
            "--out",
            folder,
        ],
    ]
    command = [sys.executable, "-c", CALLS, json.dumps(commands, default=str)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    *documents, rest = done.stdout.split("exit code 0\n")
    assert (len(documents), rest) == (3, ""), done.stderr
    return dict(zip(("list", "suite", "run"), map(json.loads, documents), strict=True))


def test_every_kind_has_a_page_with_an_example_of_its_hook():
    for hook in set(registry.HOOKS) - {registry.METHODS_HOOK}:
        assert sum(f"def {hook}()" in example for example in EXAMPLES) == 1


def test_the_plugin_of_the_page_is_listed_with_all_that_it_adds(outside):
    (extras,) = [row for row in outside["list"]["plugins"] if row["name"] == "extras"]
    assert extras["distribution"] == "flnl-bench-extras"
    assert (extras["noises"], extras["partitions"]) == (["dim"], ["giant"])
    assert (extras["datasets"], extras["models"], extras["methods"]) == (["bars"], ["mlp"], [])
    assert (extras["trackers"], extras["version"], extras["failed"]) == (["diary"], "0.1", None)


def test_a_suite_and_worker_processes_find_the_kinds_of_the_page(outside):
    (planned,) = outside["suite"]["runs"]
    suite, rounds = (Path(run["run_dir"], "rounds.jsonl") for run in (planned, outside["run"]))

    def numbers(path):
        return [
            {key: value for key, value in json.loads(line).items() if key != "seconds"}
            for line in path.read_text().splitlines()
        ]

    assert numbers(rounds) == numbers(suite)
    assert len(numbers(rounds)) == 3
    assert len((rounds.parent / "trackers" / "diary" / "accuracy.csv").read_text().splitlines()) == 4


def test_the_noise_of_the_page_hits_dark_images_only():
    names: dict = {}
    for example in EXAMPLES:
        exec(example, names)
    dataset = names["bars"](None, None)
    rows = np.arange(100)
    client = SimpleNamespace(true=dataset.train_y[rows], rows=rows, ratio=0.25, classes=8, dataset=dataset)
    wrong = names["next_class_in_the_dark"](client) != client.true
    brightness = dataset.train_x[rows].mean((1, 2, 3))
    assert wrong.sum() == 25
    assert brightness[wrong].max() <= brightness[~wrong].min()
