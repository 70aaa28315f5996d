"""Size of the site of many runs, time to make it and, with Playwright, time to open it.

    python -m benchmarks.speed.report_scale --runs 500

The runs are made in a temporary folder, with a curve each. The time to open is that of a fresh page of
Chromium until the last table is drawn, or the charts of a method.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.speed.leaderboard_scale import ROUND, configurations, write
from flnl_bench.report.site import write_report
from flnl_bench.results.run_folder import RunFolder

LAST_ELEMENTS = {"index.html": "section[data-table] table", "methods/fedgr.html": "figure canvas"}


def rounds(count: int) -> list[dict[str, Any]]:
    """Return a curve with the diagnostics that a page shows."""
    rows = []
    for number in range(count):
        seen = {"memorised": random.uniform(0, 40), "sieve_f_score": random.random()}
        row = {"round": number, "accuracy": random.uniform(10, 90), "loss": 1.0, "diagnostics": seen}
        rows.append({**ROUND, **row})
    return rows


def opened(site: Path) -> dict[str, float]:
    """Return the seconds until each page has drawn its content."""
    from playwright.sync_api import sync_playwright

    seconds = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, last in LAST_ELEMENTS.items():
            page = browser.new_page()
            begin = time.perf_counter()
            page.goto((site / name).as_uri())
            page.locator(last).last.wait_for()
            seconds[name] = time.perf_counter() - begin
        browser.close()
    return seconds


def main() -> None:
    """Make runs and the site, and print size and times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=500)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, site = Path(name, "runs"), Path(name, "site")
        for config in configurations(options.runs):
            RunFolder(write(folder, config)).rewrite_rounds(rounds(config.training.rounds))
        begin = time.perf_counter()
        write_report(folder, site)
        taken = time.perf_counter() - begin
        sizes = [file.stat().st_size for file in site.rglob("*") if file.is_file()]
        index = (site / "index.html").stat().st_size
        print(f"{options.runs} runs: made in {taken:.1f} s, {len(sizes)} files, {sum(sizes) / 1e6:.1f} MB")
        print(f"index.html: {index / 1e3:.0f} kB")
        if importlib.util.find_spec("playwright"):
            for page, clock in opened(site).items():
                print(f"{page}: open after {clock:.2f} s")


if __name__ == "__main__":
    main()
