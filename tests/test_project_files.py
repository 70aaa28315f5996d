"""The files around the code: citation, workflows, templates agree with pyproject.toml and the Makefile."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import flnl_bench

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
GITHUB = sorted((ROOT / ".github").rglob("*.yml"))


def workflow(name: str) -> dict:
    return yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text())


@pytest.mark.parametrize("path", [*GITHUB, ROOT / ".pre-commit-config.yaml"], ids=lambda path: path.name)
def test_every_file_for_github_is_yaml(path):
    assert isinstance(yaml.safe_load(path.read_text()), dict)


def test_ci_tests_every_python_that_the_package_claims():
    claimed = {c.rpartition(" ")[2] for c in PROJECT["classifiers"] if "Python :: 3." in c}
    matrix = workflow("ci.yml")["jobs"]["tests"]["strategy"]["matrix"]
    assert set(matrix["python"]) == claimed
    assert f">={min(claimed)}" == PROJECT["requires-python"]


def test_ci_calls_targets_that_the_makefile_has():
    steps = [step for job in workflow("ci.yml")["jobs"].values() for step in job["steps"]]
    called = re.findall(r"\bmake ([\w-]+)", "\n".join(step.get("run", "") for step in steps))
    assert {"lint", "docs", "setup"} <= set(called)
    assert set(called) <= set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))


def test_the_citation_names_this_version_and_the_authors():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == flnl_bench.__version__
    assert citation["authors"] == PROJECT["authors"]
    assert citation["repository-code"] == PROJECT["urls"]["Repository"]


def test_all_addresses_are_of_the_project_or_of_the_package_index():
    files = [*GITHUB, ROOT / "pyproject.toml", ROOT / "CITATION.cff", ROOT / "mkdocs.yml"]
    hosts = {host for path in files for host in re.findall(r"https?://([\w.-]+/[\w.-]+)", path.read_text())}
    assert hosts <= {"github.com/flnl-bench", "pypi.org/project"}
