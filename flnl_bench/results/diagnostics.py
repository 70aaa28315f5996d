"""Diagnostics that need the truth: only the recorder sees true labels.

Memorisation is measured on the global model's predictions; the quality of a sieve or of corrected
labels on what the method reports as its beliefs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np

from flnl_bench.api import Beliefs, Method, Server, State
from flnl_bench.errors import expect
from flnl_bench.random_streams import stream
from flnl_bench.results.beliefs import write_beliefs
from flnl_bench.scenario import Scenario

UNKNOWN = {  # per sample
    "clean": np.int8(-1),
    "clean_probability": np.nan,
    "losses": np.nan,
    "labels": -1,
    "pseudo_labels": -1,
}

BITS = 10  # of probabilities and losses in beliefs.npz: an error of at most 0.1 %


def as_array(values: Any) -> np.ndarray:
    """Convert a tensor to an array."""
    return values.cpu().numpy() if hasattr(values, "cpu") else np.asarray(values)


def belief_arrays(beliefs: Mapping[int, Beliefs], scenario: Scenario) -> dict[str, np.ndarray]:
    """Return arrays over the samples of the clients seen, in order of the clients, and over all clients."""
    clients = sorted(beliefs)
    sizes = np.array([scenario.sizes[k] for k in clients], np.int64)  # a method may call nobody
    rows = np.concatenate([np.empty(0, np.int64), *(scenario.clients[k] for k in clients)])
    arrays: dict[str, np.ndarray] = {
        "row": rows,
        "client": np.repeat(np.array(clients, np.int64), sizes),
        "given": scenario.given[rows],
        "estimated_ratio": np.full(len(scenario.clients), np.nan),
        "noisy_client": np.full(len(scenario.clients), -1, dtype=np.int8),
        "noise_kind": np.array(scenario.kinds),
        "nominal_ratio": scenario.nominal,
    }
    if scenario.truth_known:
        arrays |= {"true": scenario.true[rows], "realised_ratio": scenario.realised}
        if (counts := scenario.transitions) is not None:
            arrays["transitions"] = counts
        if scenario.replaced is not None:
            arrays["realised_open"] = scenario.realised_open
    for name, unknown in UNKNOWN.items():
        values = {k: getattr(beliefs[k], name) for k in clients}
        if any(value is not None for value in values.values()):
            arrays[name] = np.concatenate(
                [
                    np.full(scenario.sizes[k], unknown) if value is None else as_array(value)
                    for k, value in values.items()
                ]
            )
    for k in clients:
        ratio, noisy = beliefs[k].noise_ratio, beliefs[k].noisy_client
        arrays["estimated_ratio"][k] = np.nan if ratio is None else ratio
        arrays["noisy_client"][k] = -1 if noisy is None else noisy
    return arrays


def save_beliefs(path: Path, beliefs: Mapping[int, Beliefs], scenario: Scenario) -> None:
    """Write the arrays as one file."""
    arrays = belief_arrays(beliefs, scenario)
    for name in {"clean_probability", "losses"} & arrays.keys():
        arrays[name] = _rounded(arrays[name])
    write_beliefs(path, arrays)


def _rounded(values: np.ndarray) -> np.ndarray:
    """Round to float32 with BITS binary digits, which take half the space of all in an archive."""
    fraction, exponent = np.frexp(values)
    rounded: np.ndarray = np.ldexp(np.round(np.ldexp(fraction, BITS)), exponent - BITS)
    return rounded.astype(np.float32)


PROBED = 1000  # training samples on which memorisation is measured each round
EntryPath = tuple[Any, ...]  # of the server's state
EVERY_ROUND: EntryPath = ("round or weights",)  # stands for what changes in every round
MOST_READS = 64  # a client whose beliefs read more entries is judged in every round

RESERVED_NAMES = {  # names that a method's own numbers may not have
    *("memorised", "memorised_open", "accuracy_clean", "accuracy_wrong"),
    *(f"sieve_{name}" for name in ("precision", "recall", "f_score", "open_recall")),
    *("noise_ratio_correlation", "noise_ratio_error"),
    *("worst_class", "worst_client", "worst_tenth", "survival_worst", "classes_lost", "rarity_penalty"),
    *(f"accused_right{group}" for group in ("", "_clean_clients", "_rare", "_common")),
    *(f"accused_clients{group}" for group in ("", "_rare", "_common")),
    *(f"noisy_client_{name}" for name in ("precision", "recall", "accuracy")),
    *(
        f"{kind}_{n}"
        for kind in ("label", "pseudo_label")
        for n in ("coverage", "accuracy", "accuracy_wrong", "open_dropped")
    ),
}


class Probe:
    """A fixed random subset of the training samples, on which memorisation is measured."""

    def __init__(self, scenario: Scenario) -> None:
        rows = np.concatenate(scenario.clients)
        if len(rows) > PROBED:
            rows = stream(scenario.seed, "probe").choice(rows, PROBED, replace=False)
        self.rows = np.sort(rows)
        self.given, self.true = scenario.given[self.rows], scenario.true[self.rows]

    def measure(self, predicted: np.ndarray) -> dict[str, float | None]:
        """Return the percentage of wrong labels that are predicted, and accuracies on clean and wrong labels.

        Open-set images, for which no label is right, are counted separately.
        """
        wrong, is_open = self.given != self.true, self.true < 0
        right, as_labelled = predicted == self.true, predicted == self.given
        return {
            "memorised": _percent(as_labelled, wrong & ~is_open),
            "accuracy_clean": _percent(right, ~wrong),
            "accuracy_wrong": _percent(right, wrong & ~is_open),
            **({"memorised_open": _percent(as_labelled, is_open)} if is_open.any() else {}),
        }


def _percent(hits: np.ndarray, among: np.ndarray) -> float | None:
    """Return the percentage of hits among some samples; None if there are no samples."""
    return _share(int((hits & among).sum()), int(among.sum()))


def _share(hits: int, count: int) -> float | None:
    return 100.0 * hits / count if count else None


def sieve_scores(judged_clean: np.ndarray, wrong: np.ndarray) -> dict[str, float]:
    """Return precision, recall and F-score of a sieve; "clean" is the positive class."""
    return _scores(int((judged_clean & ~wrong).sum()), int(judged_clean.sum()), int((~wrong).sum()))


def _scores(hits: int, judged_clean: int, clean: int) -> dict[str, float]:
    precision = hits / max(1, judged_clean)
    recall = hits / max(1, clean)
    f_score = 2 * precision * recall / (precision + recall) if hits else 0.0
    return {"precision": precision, "recall": recall, "f_score": f_score}


def correlation(estimated: np.ndarray, true: np.ndarray) -> float | None:
    """Pearson's correlation; None where it is not defined."""
    if len(estimated) < 2 or np.ptp(estimated) == 0 or np.ptp(true) == 0:
        return None
    return float(np.corrcoef(estimated, true)[0, 1])


def gather_beliefs(
    method: Method, server: Server, states: Mapping[int, State], sizes: Sequence[int]
) -> dict[int, Beliefs]:
    """Ask a method for its beliefs about some clients, and check their form."""
    beliefs = {k: method.beliefs(server, k, state) for k, state in sorted(states.items())}
    for k, belief in beliefs.items():
        expect(isinstance(belief, Beliefs), method.name, "beliefs must return Beliefs", belief)
        for name in UNKNOWN:
            values, rule = getattr(belief, name), f"{name} of beliefs must have shape [{sizes[k]}]"
            expect(values is None or np.shape(values) == (sizes[k],), method.name, rule, values)
        taken = sorted(RESERVED_NAMES & belief.numbers.keys())
        rule = "numbers of beliefs must have names of their own"
        expect(not taken, method.name, rule, ", ".join(taken))
    return beliefs


# Counts of one client's samples, of which all shares are made. "Closed" are images that are not open-set.
SAMPLE_COUNTS = (
    *("sieved", "hits", "judged_clean", "clean", "open_rejected", "open_sieved"),
    *(
        f"{kind}_{count}"
        for kind in ("label", "pseudo_label")
        for count in ("samples", "has", "right", "closed", "right_wrong", "wrong", "open_dropped", "open")
    ),
)


class Judge:
    """Compares beliefs with the truth; the beliefs of a client count until there are newer ones."""

    def __init__(self, scenario: Scenario) -> None:
        clients = len(scenario.clients)
        self.scenario = scenario
        self.counts = np.zeros((clients, len(SAMPLE_COUNTS)), np.int64)
        self.total = np.zeros(len(SAMPLE_COUNTS), np.int64)  # over the clients
        self.ratio, self.true_ratio = np.zeros((2, clients))  # share of wrong labels
        self.has_ratio = np.zeros(clients, bool)
        self.called_noisy = np.full(clients, -1, np.int8)  # -1: not judged
        self.numbers: dict[int, Mapping[str, float]] = {}

    def update(self, beliefs: Mapping[int, Beliefs]) -> None:
        """Replace the beliefs about some clients."""
        for k, belief in beliefs.items():
            rows = self.scenario.clients[k]
            given, true = self.scenario.given[rows], self.scenario.true[rows]
            counts = _count_sieve(belief.clean, given, true)
            for kind, labels in (("label", belief.labels), ("pseudo_label", belief.pseudo_labels)):
                counts |= {f"{kind}_{name}": n for name, n in _count_labels(labels, given, true).items()}
            row = np.array([counts.get(name, 0) for name in SAMPLE_COUNTS])
            self.total += row - self.counts[k]
            self.counts[k] = row
            self.has_ratio[k] = belief.noise_ratio is not None
            self.ratio[k] = belief.noise_ratio or 0.0
            self.true_ratio[k] = (given != true).mean()
            self.called_noisy[k] = -1 if belief.noisy_client is None else belief.noisy_client
            self.numbers[k] = belief.numbers

    def report(self, selected: Sequence[int]) -> dict[str, Any]:
        """Return numbers over all clients; the method's own numbers are means over those of this round."""
        total = dict(zip(SAMPLE_COUNTS, self.total.tolist(), strict=True))
        report: dict[str, Any] = {}
        if total["sieved"]:
            scores = _scores(total["hits"], total["judged_clean"], total["clean"])
            report |= {f"sieve_{name}": value for name, value in scores.items()}
        if total["open_sieved"]:
            report["sieve_open_recall"] = total["open_rejected"] / total["open_sieved"]
        report |= self._ratios() | self._clients()
        for kind in ("label", "pseudo_label"):
            report |= _share_labels(kind, total)
        of_clients = [self.numbers[k] for k in selected if k in self.numbers]
        for name in sorted({name for numbers in of_clients for name in numbers}):
            report[name] = float(np.mean([numbers[name] for numbers in of_clients if name in numbers]))
        return report

    def _ratios(self) -> dict[str, Any]:
        if not self.has_ratio.any():
            return {}
        estimated, true = self.ratio[self.has_ratio], self.true_ratio[self.has_ratio]
        related = correlation(estimated, true)
        return {
            "noise_ratio_correlation": None if related is None else round(related, 6),
            "noise_ratio_error": round(float(np.abs(estimated - true).mean()), 6),
        }

    def _clients(self) -> dict[str, Any]:
        """Return precision, recall and accuracy of "noisy" among the clients that were judged."""
        judged = self.called_noisy >= 0
        if not judged.any():
            return {}
        called, noisy = self.called_noisy[judged] > 0, truly_noisy(self.scenario)[judged]
        hits = int((called & noisy).sum())
        return {
            "noisy_client_precision": hits / int(called.sum()) if called.any() else None,
            "noisy_client_recall": hits / int(noisy.sum()) if noisy.any() else None,
            "noisy_client_accuracy": float((called == noisy).mean()),
        }


def judge(beliefs: Mapping[int, Beliefs], scenario: Scenario, selected: Sequence[int]) -> dict[str, Any]:
    """Compare beliefs with the truth once."""
    one = Judge(scenario)
    one.update(beliefs)
    return one.report(selected)


def truly_noisy(scenario: Scenario) -> np.ndarray:
    """Return whether each client was given noise and has a wrong label, bool [K]."""
    given_noise: np.ndarray = np.array(scenario.kinds) != "clean"
    return given_noise & (scenario.realised > 0)


def _count_sieve(values: Any, given: np.ndarray, true: np.ndarray) -> dict[str, int]:
    if values is None:
        return {}
    judged_clean, clean, is_open = as_array(values).astype(bool), given == true, true < 0
    return {
        "sieved": len(given),
        "hits": int((judged_clean & clean).sum()),
        "judged_clean": int(judged_clean.sum()),
        "clean": int(clean.sum()),
        "open_rejected": int((~judged_clean & is_open).sum()),
        "open_sieved": int(is_open.sum()),
    }


def _count_labels(values: Any, given: np.ndarray, true: np.ndarray) -> dict[str, int]:
    if values is None:
        return {}
    labels = as_array(values)
    has, is_open = labels >= 0, true < 0
    closed = has & ~is_open  # no label of an open-set image is right, and having none is
    right, wrong = labels == true, closed & (given != true)
    return {
        "samples": len(labels),
        "has": int(has.sum()),
        "right": int((right & closed).sum()),
        "closed": int(closed.sum()),
        "right_wrong": int((right & wrong).sum()),
        "wrong": int(wrong.sum()),
        "open_dropped": int((~has & is_open).sum()),
        "open": int(is_open.sum()),
    }


def _share_labels(kind: str, total: Mapping[str, int]) -> dict[str, Any]:
    count = {name.removeprefix(f"{kind}_"): n for name, n in total.items() if name.startswith(f"{kind}_")}
    if not count["samples"]:
        return {}
    report = {
        f"{kind}_coverage": 100.0 * (count["has"] / count["samples"]),
        f"{kind}_accuracy": _share(count["right"], count["closed"]),
        f"{kind}_accuracy_wrong": _share(count["right_wrong"], count["wrong"]),
    }
    if count["open"]:
        report[f"{kind}_open_dropped"] = _share(count["open_dropped"], count["open"])
    return report


class _ServerOfBeliefs(Server):
    """A server that notes when a hook reads what changes in every round."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("round", "weights"):
            super().__getattribute__("state").notes.add(EVERY_ROUND)
        return super().__getattribute__(name)


class ChangedBeliefs:
    """Asks for the beliefs about a client again only if what they were computed from may have changed.

    That is its state, or an entry of the server's state that its beliefs read.
    """

    def __init__(self, method: Method, scenario: Scenario) -> None:
        self.method, self.sizes = method, scenario.sizes
        self._readers: dict[EntryPath, set[int]] = {}  # entry of the server's state → clients
        self._first = True  # a resumed run has called clients already

    def after(
        self, server: Server, states: Mapping[int, State], called: Set[int], changed: Set[EntryPath]
    ) -> dict[int, Beliefs]:
        """Return the new beliefs after a round that called some clients and changed entries of the server."""
        readers = (self._readers.get(path, set()) for path in (*changed, EVERY_ROUND))
        outdated = set(states) if self._first else set(called).union(*readers)
        self._first = False
        watched = _ServerOfBeliefs(**vars(server))
        beliefs: dict[int, Beliefs] = {}
        for k in sorted(outdated):
            with server.state.notes.reads() as paths:  # type: ignore[attr-defined]
                beliefs |= gather_beliefs(self.method, watched, {k: states[k]}, self.sizes)
            for path in paths if len(paths) <= MOST_READS else (EVERY_ROUND,):
                self._readers.setdefault(path, set()).add(k)
        return beliefs
