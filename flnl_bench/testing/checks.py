"""All checks with their reasons and usual causes, and how to run them; causes come before consequences."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from flnl_bench.api import Method
from flnl_bench.data import DatasetKind
from flnl_bench.errors import BadInput, BrokenContract, MissingData, one_line, place_in
from flnl_bench.models import ModelKind
from flnl_bench.scenario import NoiseKind, PartitionKind
from flnl_bench.testing import methods, plugin_entries
from flnl_bench.trackers import Tracker

Test = TypeVar("Test", bound=Callable[..., Any])


@dataclass(frozen=True)
class Check:
    """One property that an entry must have."""

    function: Callable[[Any], None]  # raises if the entry lacks the property
    why: str  # why it matters
    cause: str  # the usual cause of a failure
    after: tuple[Callable[[Any], None], ...] = ()  # if one of these fails, this check is skipped

    @property
    def what(self) -> str:
        """Return the property in a sentence."""
        return (self.function.__doc__ or "").strip().splitlines()[0]


_AFTER_RUNNING = (methods.check_runs,)
_AFTER_TWO_RUNS = (*_AFTER_RUNNING, methods.check_deterministic)

CHECKS: dict[str, Sequence[Check]] = {
    "method": (
        Check(
            methods.check_declared,
            "the lists, --set and the leaderboard use its declaration",
            "a docstring or a `reference` is missing, or a hyper-parameter has no type or default",
        ),
        Check(
            methods.check_runs,
            "nothing else can be checked",
            "a mistake in the named line, or a `loss` that is averaged: F.cross_entropy needs "
            "reduction='none'; methods cannot access true labels, e.g. client.true",
        ),
        Check(
            methods.check_warmup,
            "the other checks run six rounds, and do not reach what follows a longer warm-up",
            "`warmup` does not depend on terms.rounds; make it a share of them",
            _AFTER_RUNNING,
        ),
        Check(
            methods.check_finite,
            "a run with NaN has no result",
            "a division or a logarithm without a floor, or a weight of zero for all samples",
            _AFTER_RUNNING,
        ),
        Check(
            methods.check_deterministic,
            "a result that cannot be repeated cannot be compared",
            "draws from random or NumPy itself, or from torch in predict; use client.rng, or "
            "server.stream(name) on the server",
            _AFTER_RUNNING,
        ),
        Check(
            methods.check_resumes,
            "a resumed run would have other numbers",
            "the method keeps state on the class, the model or in a global; use client.state or server.state",
            _AFTER_TWO_RUNS,
        ),
        Check(
            methods.check_order_of_clients,
            "several workers would give other numbers",
            "clients write to a shared object",
            _AFTER_TWO_RUNS,
        ),
        Check(
            methods.check_isolated,
            "messages that bypass the engine are not counted, and real clients could not send them",
            "clients share an object; send it with upload, inbox or visit",
            _AFTER_TWO_RUNS,
        ),
        Check(
            methods.check_blind,
            "a method that sees true labels solves another problem",
            "it reads the scenario or the data set instead of batch.y and client.y",
            _AFTER_TWO_RUNS,
        ),
        Check(
            methods.check_travels,
            "--workers sends the method and its model to other processes",
            "a lambda, or a class that is defined inside a function",
            _AFTER_RUNNING,
        ),
        Check(
            methods.check_blind_clients,
            "a client hook that finds true labels in memory, as through stack frames, solves another problem",
            "it reads objects that it was not given, or keeps state outside of client.state",
            (*_AFTER_TWO_RUNS, methods.check_travels),
        ),
        Check(
            methods.check_assumptions,
            "tables show them, and a comparison may exclude methods that receive the noise rate",
            "it reads terms.expected_noise or terms.iid, or uploads numbers about samples or classes",
            _AFTER_RUNNING,
        ),
        Check(
            methods.check_degenerate_clients,
            "skewed partitions have clients with one sample or one class",
            "a statistic of few or equal values: a mixture, a correlation, a standard deviation",
            (*_AFTER_RUNNING, methods.check_finite),
        ),
        Check(
            methods.check_beliefs_fit,
            "the recorder compares them with the truth",
            "arrays of another length than the client, or a noise_ratio outside of 0 to 1",
            _AFTER_RUNNING,
        ),
        Check(
            methods.check_learns,
            "a method that does not learn without noise will not learn with it",
            "the loss has the wrong sign or drops all samples, or aggregate returns the old weights",
            (*_AFTER_RUNNING, methods.check_finite),
        ),
    ),
    "noise": (
        Check(
            plugin_entries.check_noise_written,
            "the name of a run is made of it",
            "the entry's `parse` loses a value",
        ),
        Check(
            plugin_entries.check_noise_draws,
            "no scenario could be made",
            "labels must be int64 [n] from 0 to classes - 1, for clients of any size",
            (plugin_entries.check_noise_written,),
        ),
        Check(
            plugin_entries.check_noise_repeats,
            "methods would be compared on different labels",
            "draws from NumPy itself; use client.rng or client.shared_rng(name)",
            (plugin_entries.check_noise_draws,),
        ),
        Check(
            plugin_entries.check_noise_announced,
            "methods use the announced share of wrong labels",
            "not client.ratio of the labels change; give the true share by `expected`",
            (plugin_entries.check_noise_draws, plugin_entries.check_noise_repeats),
        ),
    ),
    "partition": (
        Check(
            plugin_entries.check_partition_splits,
            "no scenario could be made",
            "a row is missing or assigned twice, or a client gets too few",
        ),
        Check(
            plugin_entries.check_partition_repeats,
            "methods would be compared on different clients",
            "draws from NumPy itself; use the `rng` argument",
            (plugin_entries.check_partition_splits,),
        ),
    ),
    "dataset": (
        Check(
            plugin_entries.check_dataset_loads,
            "no run could start",
            "see Dataset.from_arrays",
        ),
        Check(
            plugin_entries.check_dataset_declared,
            "lists and cost estimates use it",
            "`classes` or `train_images` of the entry are not those of the data",
            (plugin_entries.check_dataset_loads,),
        ),
        Check(
            plugin_entries.check_dataset_repeats,
            "fingerprints of scenarios would change from run to run",
            "draws without a fixed seed, or an unsorted list of files",
            (plugin_entries.check_dataset_loads,),
        ),
    ),
    "model": (
        Check(
            plugin_entries.check_model_builds,
            "no run could start",
            "`feature_size` is not the number of features, or the images are too small for the strides",
        ),
        Check(
            plugin_entries.check_model_repeats,
            "runs of one seed would begin with different weights",
            "weights that are not drawn from torch's generator",
            (plugin_entries.check_model_builds,),
        ),
        Check(
            plugin_entries.check_model_judges_images_one_by_one,
            "the test accuracy would depend on the batches",
            "batch statistics in evaluation mode",
            (plugin_entries.check_model_builds,),
        ),
        Check(
            plugin_entries.check_model_trains,
            "parts without a gradient are sent and averaged in vain",
            "an unused layer, or a detach",
            (plugin_entries.check_model_builds,),
        ),
        Check(
            plugin_entries.check_model_travels,
            "--workers sends it to other processes",
            "a module class or a function that is defined inside a function",
            (plugin_entries.check_model_builds,),
        ),
    ),
    "tracker": (
        Check(
            plugin_entries.check_tracker_sees_a_run,
            "it would be dropped in every run",
            "a package, a server or a key is missing",
        ),
        Check(
            plugin_entries.check_tracker_resumes,
            "a resumed run uses a new tracker in the same folder",
            "it creates something that exists already",
            (plugin_entries.check_tracker_sees_a_run,),
        ),
    ),
}


def kind_of(entry: object) -> str:
    """Return the kind of an entry of a plugin."""
    if isinstance(entry, type) and issubclass(entry, Tracker):
        return "tracker"
    kinds = {"noise": NoiseKind, "partition": PartitionKind, "dataset": DatasetKind, "model": ModelKind}
    return next((kind for kind, cls in kinds.items() if isinstance(entry, cls)), "method")


@dataclass(frozen=True)
class Finding:
    """The outcome of one check."""

    check: Check
    status: str  # passed, failed, or skipped
    problem: str = ""  # the failure, or why it was skipped


def examine(entry: Any) -> Iterator[Finding]:
    """Check a method (class or instance) or an entry of another kind; yield the outcome of each check."""
    is_method = isinstance(entry, type) and issubclass(entry, Method)
    subject, failed = entry() if is_method else entry, set[Callable[[Any], None]]()
    for check in CHECKS[kind_of(entry)]:
        if failed & {*check.after}:
            failed.add(check.function)
            yield Finding(check, "skipped", "follows from a failure above")
            continue
        status, problem = _outcome(check, subject)
        if status == "failed":
            failed.add(check.function)
        yield Finding(check, status, problem)


def _outcome(check: Check, subject: Any) -> tuple[str, str]:
    try:
        # Hide what a method prints and warns of.
        with warnings.catch_warnings(), contextlib.redirect_stdout(None):
            warnings.simplefilter("ignore")
            check.function(subject)
    except plugin_entries.CannotTell as reason:
        return "skipped", str(reason)
    except (AssertionError, BadInput, BrokenContract, MissingData) as error:
        return "failed", " ".join(str(error).split()) or one_line(error)
    except (Exception, SystemExit) as error:
        frames = "".join(traceback.format_exception(error))
        return "failed", f"{one_line(error)} ({place_in(frames, _file_of(subject))})"
    return "passed", ""


def _file_of(subject: Any) -> str:
    """Return the file of an entry's code, or nothing if it is unknown."""
    with contextlib.suppress(OSError, TypeError):
        return inspect.getfile(subject if isinstance(subject, type) else type(subject))
    return ""


# -- for pytest --------------------------------------------------------------------------------------
def parametrize_with_checks(
    entries: Iterable[Any], without: Sequence[Callable[[Any], None]] = ()
) -> Callable[[Test], Test]:
    """Return a pytest decorator that makes one test, with the argument `check`, per entry and check.

    Args:
        entries: classes or instances of methods, and entries of other kinds.
        without: checks that are left out, as functions of `flnl_bench.testing.methods`.
    """
    import pytest

    cases = []
    for entry in entries:
        is_method = isinstance(entry, type) and issubclass(entry, Method)
        subject = entry() if is_method else entry
        cases += [
            pytest.param(
                functools.partial(_test, check, subject), id=f"{_title(subject)}-{check.function.__name__}"
            )
            for check in CHECKS[kind_of(entry)]
            if check.function not in without
        ]
    return pytest.mark.parametrize("check", cases)


def _test(check: Check, subject: Any) -> None:
    """Run one check; skip it if it fails because another check does."""
    import pytest

    try:
        check.function(subject)
    except plugin_entries.CannotTell as reason:
        pytest.skip(str(reason))
    except Exception:
        for cause in CHECKS[kind_of(subject)]:
            if cause.function in check.after and _outcome(cause, subject)[0] == "failed":
                pytest.skip(f"follows from {cause.function.__name__}, which fails")
        raise


def _title(subject: Any) -> str:
    if not isinstance(subject, Method):
        return str(subject.name)
    changed = [
        f"{f.name}={getattr(subject, f.name)}"
        for f in dataclasses.fields(subject)  # type: ignore[arg-type]
        if getattr(subject, f.name) != f.default
    ]
    return "-".join([subject.name, *changed])
