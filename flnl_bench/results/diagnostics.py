"""Diagnostics that need the truth: only the recorder sees true labels.

Memorisation is measured on the global model's predictions; the quality of a sieve or of corrected
labels on what the method reports as its beliefs.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flnl_bench.api import Beliefs, Method, Server, State
from flnl_bench.atomic_files import replace_file
from flnl_bench.errors import expect
from flnl_bench.random_streams import stream
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
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    replace_file(path, buffer.getvalue())


def _rounded(values: np.ndarray) -> np.ndarray:
    """Round to float32 with BITS binary digits, which take half the space of all in an archive."""
    fraction, exponent = np.frexp(values)
    rounded: np.ndarray = np.ldexp(np.round(np.ldexp(fraction, BITS)), exponent - BITS)
    return rounded.astype(np.float32)


PROBED = 1000  # training samples on which memorisation is measured each round

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
    count = int(among.sum())
    return 100.0 * int((hits & among).sum()) / count if count else None


def sieve_scores(judged_clean: np.ndarray, wrong: np.ndarray) -> dict[str, float]:
    """Return precision, recall and F-score of a sieve; "clean" is the positive class."""
    hits = int((judged_clean & ~wrong).sum())
    precision = hits / max(1, int(judged_clean.sum()))
    recall = hits / max(1, int((~wrong).sum()))
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
    """Ask a method for its beliefs about the clients seen, and check their form."""
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


def judge(beliefs: Mapping[int, Beliefs], scenario: Scenario, selected: Sequence[int]) -> dict[str, Any]:
    """Compare beliefs with the truth, over all clients; the method's own numbers are those of this round."""
    wrong = {k: scenario.given[rows] != scenario.true[rows] for k, rows in enumerate(scenario.clients)}

    def reported(field: str) -> dict[int, Any]:
        values = {k: getattr(belief, field) for k, belief in beliefs.items()}
        return {k: value for k, value in values.items() if value is not None}

    clean = {k: as_array(values) for k, values in reported("clean").items()}
    report: dict[str, Any] = {
        **_judge_sieve(clean, wrong),
        **_judge_open(clean, scenario),
        **_judge_ratios(reported("noise_ratio"), wrong),
        **_judge_clients(reported("noisy_client"), scenario),
        **_judge_labels("label", reported("labels"), scenario),
        **_judge_labels("pseudo_label", reported("pseudo_labels"), scenario),
    }
    of_clients = [beliefs[k].numbers for k in selected if k in beliefs]
    for name in sorted({name for numbers in of_clients for name in numbers}):
        report[name] = float(np.mean([numbers[name] for numbers in of_clients if name in numbers]))
    return report


def _judge_sieve(clean: Mapping[int, np.ndarray], wrong: Mapping[int, np.ndarray]) -> dict[str, Any]:
    if not clean:
        return {}
    scores = sieve_scores(np.concatenate(list(clean.values())), np.concatenate([wrong[k] for k in clean]))
    return {f"sieve_{name}": value for name, value in scores.items()}


def _judge_open(clean: Mapping[int, np.ndarray], scenario: Scenario) -> dict[str, Any]:
    """Return the share of the open-set images that the sieve rejects."""
    rejected = [~clean[k].astype(bool)[scenario.is_open[scenario.clients[k]]] for k in clean]
    rejects = np.concatenate(rejected) if rejected else np.empty(0)
    return {"sieve_open_recall": float(rejects.mean())} if len(rejects) else {}


def _judge_ratios(ratios: Mapping[int, float], wrong: Mapping[int, np.ndarray]) -> dict[str, Any]:
    if not ratios:
        return {}
    estimated = np.array(list(ratios.values()))
    true = np.array([wrong[k].mean() for k in ratios])
    related = correlation(estimated, true)
    return {
        "noise_ratio_correlation": None if related is None else round(related, 6),
        "noise_ratio_error": round(float(np.abs(estimated - true).mean()), 6),
    }


def _judge_clients(called_noisy: Mapping[int, bool], scenario: Scenario) -> dict[str, Any]:
    """Return precision, recall and accuracy of "noisy" among the clients seen."""
    if not called_noisy:
        return {}
    called = np.array(list(called_noisy.values()), dtype=bool)
    noisy = truly_noisy(scenario)[list(called_noisy)]
    hits = int((called & noisy).sum())
    return {
        "noisy_client_precision": hits / int(called.sum()) if called.any() else None,
        "noisy_client_recall": hits / int(noisy.sum()) if noisy.any() else None,
        "noisy_client_accuracy": float((called == noisy).mean()),
    }


def truly_noisy(scenario: Scenario) -> np.ndarray:
    """Return whether each client was given noise and has a wrong label, bool [K]."""
    given_noise: np.ndarray = np.array(scenario.kinds) != "clean"
    return given_noise & (scenario.realised > 0)


def _judge_labels(name: str, labels: Mapping[int, Any], scenario: Scenario) -> dict[str, Any]:
    if not labels:
        return {}
    refined = np.concatenate([as_array(values) for values in labels.values()])
    true = np.concatenate([scenario.true[scenario.clients[k]] for k in labels])
    given = np.concatenate([scenario.given[scenario.clients[k]] for k in labels])
    has, is_open = refined >= 0, true < 0
    closed = has & ~is_open  # no label of an open-set image is right, and having none is
    return {
        f"{name}_coverage": 100.0 * float(has.mean()),
        f"{name}_accuracy": _percent(refined == true, closed),
        f"{name}_accuracy_wrong": _percent(refined == true, closed & (given != true)),
        **({f"{name}_open_dropped": _percent(~has, is_open)} if is_open.any() else {}),
    }
