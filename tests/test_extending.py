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


@pytest.fixture(scope="module")
def outside(tmp_path_factory):
    """The command line in a process of its own, where the plugin of the page is installed."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "flnl_bench_extras.py").write_text("\n".join(EXAMPLES))
    about = folder / "flnl_bench_extras-0.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: flnl-bench-extras\nVersion: 0.1\n")
    (about / "entry_points.txt").write_text("[flnl_bench]\nextras = flnl_bench_extras\n")
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))

    def call(*arguments):
        code = "from flnl_bench.cli import main; main()"
        command = [sys.executable, "-c", code, *map(str, arguments), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return call


EXTRAS = {
    "dataset": "bars",
    "partition": "giant-0.5",
    "setting": "dim-1.0",
    "model": "mlp",
}


def test_every_kind_has_a_page_with_an_example_of_its_hook():
    for hook in set(registry.HOOKS) - {registry.METHODS_HOOK}:
        assert sum(f"def {hook}()" in example for example in EXAMPLES) == 1


def test_the_plugin_of_the_page_is_listed_with_all_that_it_adds(outside):
    (extras,) = [row for row in outside("list", "plugins")["plugins"] if row["name"] == "extras"]
    assert extras["distribution"] == "flnl-bench-extras"
    assert (extras["noises"], extras["partitions"]) == (["dim"], ["giant"])
    assert (extras["datasets"], extras["models"], extras["methods"]) == (["bars"], ["mlp"], [])
    assert (extras["trackers"], extras["version"], extras["failed"]) == (["diary"], "0.1", None)


def test_a_suite_and_worker_processes_find_the_kinds_of_the_page(outside, tmp_path):
    file = tmp_path / "extras.toml"
    file.write_text(
        'methods = ["fedavg"]\ndatasets = ["bars"]\npartitions = ["giant-0.5"]\nsettings = ["dim-1.0"]\n'
        '[training]\nmodel = "mlp"\nrounds = 3\nclients = 4\nepochs = 1\nsamples = 200\nfraction = 0.5\n'
    )
    outside("suite", file, "--jobs", 1, "--out", tmp_path / "suite")
    (suite,) = (tmp_path / "suite").rglob("rounds.jsonl")
    options = [part for name, value in EXTRAS.items() for part in (f"--{name}", value)]
    made = outside("run", "--method", "fedavg", *options, *TINY, "--workers", 2, "--out", tmp_path / "run",
                   "--tracker", "diary")  # fmt: skip
    rounds = Path(made["run_dir"], "rounds.jsonl")

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
