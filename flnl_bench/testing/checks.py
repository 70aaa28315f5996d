"""Checks with words: what failed, why it matters and the usual cause; roots before what follows from them."""

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

    function: Callable[[Any], None]  # raises if it has not
    why: str  # it matters
    cause: str  # of most failures
    after: tuple[Callable[[Any], None], ...] = ()  # if one of these fails, this one says nothing new

    @property
    def what(self) -> str:
        """The property in a sentence."""
        return (self.function.__doc__ or "").strip().splitlines()[0]


PLAYS = (methods.check_plays,)
STEADY = (*PLAYS, methods.check_deterministic)

CHECKS: dict[str, Sequence[Check]] = {
    "method": (
        Check(
            methods.check_declared,
            "the lists, --set and the leaderboard read it",
            "a docstring or a `reference` is missing, or a hyper-parameter has no type or default",
        ),
        Check(
            methods.check_plays,
            "nothing else can be checked",
            "a mistake in the named line; true labels, as client.true, are not reachable at all",
        ),
        Check(
            methods.check_warmup,
            "the other checks run six rounds, and what comes after a longer warm-up is not checked",
            "`warmup` counts rounds without regard to terms.rounds; make it a share of them",
            PLAYS,
        ),
        Check(
            methods.check_finite,
            "a run with NaN has no result",
            "a division or a logarithm without a floor, or a weight of zero for all samples",
            PLAYS,
        ),
        Check(
            methods.check_deterministic,
            "a result that cannot be repeated cannot be compared",
            "draws from random or NumPy itself, or from torch in predict; use client.rng, or "
            "server.stream(name) on the server",
            PLAYS,
        ),
        Check(
            methods.check_resumes,
            "a run that was stopped would end with other numbers",
            "something is remembered on the class, the model or in a global; keep it in client.state or "
            "server.state",
            STEADY,
        ),
        Check(
            methods.check_order_of_clients,
            "several workers would give other numbers",
            "clients of a round write to something that they share",
            STEADY,
        ),
        Check(
            methods.check_isolated,
            "what passes by the engine is not counted, and real clients could not send it",
            "clients share an object; send it by upload, inbox or visit",
            STEADY,
        ),
        Check(
            methods.check_blind,
            "a method that sees true labels solves another problem",
            "it reads the scenario or the data set instead of batch.y and client.y",
            STEADY,
        ),
        Check(
            methods.check_travels,
            "--workers sends the method and its model to other processes",
            "a lambda, or a class that is defined inside a function",
            PLAYS,
        ),
        Check(
            methods.check_degenerate_clients,
            "skewed partitions have clients with one sample or one class",
            "a statistic of few or equal values: a mixture, a correlation, a standard deviation",
            (*PLAYS, methods.check_finite),
        ),
        Check(
            methods.check_beliefs,
            "the recorder compares them with the truth",
            "arrays of another length than the client, or a noise_ratio outside of 0 to 1",
            PLAYS,
        ),
        Check(
            methods.check_learns,
            "a method that does not learn without noise will not learn with it",
            "the loss has the wrong sign or drops all samples, or aggregate returns the old weights",
            (*PLAYS, methods.check_finite),
        ),
    ),
    "noise": (
        Check(
            plugin_entries.check_noise_written,
            "the name of a run is made of it",
            "an own `parse` forgets something",
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
            "methods are told the expected share of wrong labels",
            "more or fewer than client.ratio of the labels change; say the share by `expected`",
            (plugin_entries.check_noise_draws, plugin_entries.check_noise_repeats),
        ),
    ),
    "partition": (
        Check(
            plugin_entries.check_partition_splits,
            "no scenario could be made",
            "a row is lost or there twice, or a client gets too few",
        ),
        Check(
            plugin_entries.check_partition_repeats,
            "methods would be compared on different clients",
            "draws from NumPy itself; use the rng that is given",
            (plugin_entries.check_partition_splits,),
        ),
    ),
    "dataset": (
        Check(
            plugin_entries.check_dataset_loads, "no run could start", "Dataset.from_arrays says what it needs"
        ),
        Check(
            plugin_entries.check_dataset_declared,
            "lists and estimates of cost show it",
            "`classes` or `train_images` of the entry are not those of the data",
            (plugin_entries.check_dataset_loads,),
        ),
        Check(
            plugin_entries.check_dataset_repeats,
            "fingerprints of scenarios would change from run to run",
            "draws without a fixed seed, or files in the order of the disk",
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
            "weights that torch's generator did not draw",
            (plugin_entries.check_model_builds,),
        ),
        Check(
            plugin_entries.check_model_judges_images_one_by_one,
            "the test accuracy would depend on the batches",
            "statistics of the batch that are used in evaluation mode, too",
            (plugin_entries.check_model_builds,),
        ),
        Check(
            plugin_entries.check_model_trains,
            "parts without a gradient are sent and averaged for nothing",
            "a layer that is defined and not used, or a detach",
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
            "it would be given up in every run",
            "a package, a server or a key is missing",
        ),
        Check(
            plugin_entries.check_tracker_goes_on,
            "a run that was stopped goes on with a new tracker in the same folder",
            "something that exists already is created again",
            (plugin_entries.check_tracker_sees_a_run,),
        ),
    ),
}


def kind_of(entry: object) -> str:
    """What an entry of a plugin is, in a word."""
    if isinstance(entry, type) and issubclass(entry, Tracker):
        return "tracker"
    known = {"noise": NoiseKind, "partition": PartitionKind, "dataset": DatasetKind, "model": ModelKind}
    return next((kind for kind, cls in known.items() if isinstance(entry, cls)), "method")


@dataclass(frozen=True)
class Finding:
    """How one check ended."""

    check: Check
    status: str  # passed, failed, or skipped
    problem: str = ""  # what failed, or why it was skipped


def examine(entry: Any) -> Iterator[Finding]:
    """Check a method (class or instance) or an entry of another kind, check after check."""
    is_method = isinstance(entry, type) and issubclass(entry, Method)
    subject, failed = entry() if is_method else entry, set[Callable[[Any], None]]()
    for check in CHECKS[kind_of(entry)]:
        if failed & {*check.after}:
            failed.add(check.function)
            yield Finding(check, "skipped", "follows from what failed above")
            continue
        status, problem = _outcome(check, subject)
        if status == "failed":
            failed.add(check.function)
        yield Finding(check, status, problem)


def _outcome(check: Check, subject: Any) -> tuple[str, str]:
    try:
        # What a method prints or warns of is not what is asked for here.
        with warnings.catch_warnings(), contextlib.redirect_stdout(None):
            warnings.simplefilter("ignore")
            check.function(subject)
    except plugin_entries.CannotTell as reason:
        return "skipped", str(reason)
    except (AssertionError, BadInput, BrokenContract, MissingData) as error:
        return "failed", " ".join(str(error).split()) or one_line(error)
    except (Exception, SystemExit) as error:
        frames = "".join(traceback.format_exception(error))
        return "failed", f"{one_line(error)} ({place_in(frames, _home(subject))})"
    return "passed", ""


def _home(subject: Any) -> str:
    """The file of an entry's code, as far as it is known."""
    with contextlib.suppress(OSError, TypeError):
        return inspect.getfile(subject if isinstance(subject, type) else type(subject))
    return ""


# -- for pytest --------------------------------------------------------------------------------------
def parametrize_with_checks(entries: Iterable[Any]) -> Callable[[Test], Test]:
    """A pytest decorator: one test, called `check`, per entry and check.

    Args:
        entries: classes or instances of methods, and entries of other plugin_entries.
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
        ]
    return pytest.mark.parametrize("check", cases)


def _test(check: Check, subject: Any) -> None:
    """Run one check; if it fails only because another does, that one tells."""
    import pytest

    try:
        check.function(subject)
    except plugin_entries.CannotTell as reason:
        pytest.skip(str(reason))
    except Exception:
        by_function = {each.function: each for each in CHECKS[kind_of(subject)]}
        for root in check.after:
            if _outcome(by_function[root], subject)[0] == "failed":
                pytest.skip(f"follows from {root.__name__}, which fails")
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
