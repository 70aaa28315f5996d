"""Publish the finished runs below some folders: `python -m benchmarks.publish RUNS …`.

The runs of each data set are added to `results/DATASET.zip`. They take the place of published runs of the
same configuration, also of those of an older version of the method. Then `flnl_bench/published.json` gets the
digests, and the pages their tables and picture.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from collections import defaultdict
from pathlib import Path

from benchmarks import pages
from flnl_bench.atomic_files import replace_file, replacing
from flnl_bench.results.archive import Exported, write_archive
from flnl_bench.results.published import LIST, PACKAGE, published_runs
from flnl_bench.results.run_folder import read_runs
from flnl_bench.results.run_record import RunRecord

SOURCES = PACKAGE.parent


def main(folders: list[str]) -> None:
    """Publish runs, and say what is left out and how large the archives are."""
    if not folders:
        sys.exit(
            "python -m benchmarks.publish RUNS …: name the results folders whose finished runs are published"
        )
    new: dict[str, list[RunRecord]] = defaultdict(list)
    for folder in folders:
        records, problems = read_runs(Path(folder))
        for path, why in problems.items():
            print(f"left out: {path}: {why}")
        for record in records:
            if record.done and record.generated and ":" not in record.config.dataset:
                # A run that was published, and imported to go on with a suite, is still our own.
                new[record.config.dataset].append(dataclasses.replace(record, imported=None))
    for dataset, records in sorted(new.items()):
        publish(dataset, records)
    sizes = [path.stat().st_size for path in sorted((SOURCES / "results").glob("*.zip"))]
    print(f"{sum(sizes) / 1e6:.1f} MB in {len(sizes)} archives")
    pages.main()


def publish(dataset: str, records: list[RunRecord]) -> None:
    """Add runs to the archive of their data set."""
    here = {place(record) for record in records}
    kept = [r for r in published_runs()[0] if r.config.dataset == dataset and place(r) not in here]
    file, exported = SOURCES / "results" / f"{dataset}.zip", Exported()
    with replacing(file) as partial:
        write_archive(partial, [*records, *kept], exported)
    for path, why in exported.left_out.items():
        print(f"left out: {path}: {why}")
    print(f"{file.name}: {exported.runs} runs, {len(kept)} of them published before")
    digests = json.loads((PACKAGE / LIST).read_bytes())
    digests[file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
    replace_file(PACKAGE / LIST, json.dumps(dict(sorted(digests.items())), indent=2) + "\n")


def place(record: RunRecord) -> tuple[object, ...]:
    """Return the identity of a run, whatever the version of its method."""
    return dataclasses.replace(record, config=dataclasses.replace(record.config, version=0)).identity


if __name__ == "__main__":
    main(sys.argv[1:])
