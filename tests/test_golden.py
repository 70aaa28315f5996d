"""Values that must not change: folders of runs, fingerprints of scenarios, rounds of every method.

`python tests/test_golden.py` writes the files in tests/golden. Whoever has to write them again has changed
results: see "Whoever changes the numbers" in CONTRIBUTING.md.

Each run is compared twice: on a kind of CPU that digests.json knows, every bit of the rounds and of the final
weights must be the same; on every CPU, the rounds must be near those in rounds.json.
"""

import hashlib
import json
import math
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
from command_line import flnl, rounds_of
from safetensors.numpy import load_file

import flnl_bench as fb
from flnl_bench.methods import default_methods
from flnl_bench.results.provenance import machine

GOLDEN = Path(__file__).parent / "golden"
PACKS = {"flnl_methods", "flnl_more"}
WRITE = "to write what this code gives: python tests/test_golden.py"

# Suites whose runs are only planned, never run: together they use every part of a configuration.
SUITES = {
    "methods": """
        settings = ["sym-1.0"]
        methods = ["fedavg", "fedavg/strong", "fedprox", "fl-coteaching", "fl-dividemix", "fedcorr",
                   "fednoro", "feddiv", "fedfixer", "fedgr", "fedgr/no-sieve"]
    """,
    "scenarios": """
        settings = ["clean", "asym-0.6", "mixed-1.0", "sym-0.6:0.2-0.4", "real"]
        partitions = ["iid", "dir-0.3", "fedcorr-0.7-10", "shard-2", "quantity-0.3"]
        seeds = [1, 13]
        methods = ["fedavg"]
    """,
    "paper": """
        presets = ["paper", "quick"]
        datasets = ["digits", "cifar10", "cifar100", "cifar10n", "clothing1m",
                    "npz:where.npz@0123456789abcdef"]
        settings = ["mixed-1.0"]
        methods = ["fedgr", "fedcorr"]
    """,
    "changed": """
        settings = ["sym-1.0"]
        methods = ["fedavg"]
        [training]
        rounds = 7
        lr = 0.05
        norm = "group"
        precision = "bfloat16"
        compile = "default"
        [sweeps.lambda]
        method = "fedgr"
        set = { lambda_b = [0.5, 2], sieve = "local" }
    """,
}

SCENARIOS = [
    ("--setting", "clean"),
    ("--setting", "sym-1.0"),
    ("--setting", "sym-1.0", "--seed", 13),
    ("--setting", "sym-0.6:0.1-0.3"),
    ("--setting", "asym-1.0"),
    ("--setting", "mixed-1.0", "--partition", "dir-0.3"),
    ("--setting", "mixed-0.6", "--partition", "dir-0.3", "--clients", 10, "--samples", 700),
    ("--setting", "sym-1.0", "--partition", "fedcorr-0.7-10"),
    ("--setting", "sym-1.0", "--partition", "shard-2"),
    ("--setting", "sym-1.0", "--partition", "quantity-0.3"),
    ("--setting", "asym-0.6", "--preset", "paper"),
    ("--setting", "mixed-1.0", "--samples", 200, "--seed", 42),
]

SMALL = {
    "setting": "mixed-1.0",
    "samples": 200,
    "clients": 4,
    "batch_size": 16,
    "model": "tiny-cnn",
    "device": "cpu",
}
LENGTHS = {
    "two": {**SMALL, "epochs": 1, "rounds": 2, "fraction": 0.5},
    "six": {**SMALL, "epochs": 1, "rounds": 6, "fraction": 1.0},  # long enough for what comes after a warm-up
    "skewed": {**SMALL, "epochs": 2, "rounds": 6, "fraction": 1.0, "partition": "dir-0.3", "samples": 120},
}
# Values with which so small a run reaches code that no variant reaches: its models are never sure of a label.
CHANGED = (
    "fedgr confidence=0.15 noisy_client=0.4",
    "fedgr high_noise_labels=pseudo+clean confidence=0.15 noisy_client=0.4 warmup_sampling=with",
    "fedgr/released confidence=0.15 noisy_client=0.4",
    "fedgr/released release=a confidence=0.15 noisy_client=0.4",
    "fl-dividemix gmm_loss_aug=true",
    "fl-dividemix threshold=1",
    "fl-dividemix threshold=1 gmm_fallback=reset_warmup",
    "fl-coteaching ramp_rounds=3",
    "fedfixer/released begin=1",
    "fedfixer begin=1 personal=kept selection=batch pull=false",
    "feddiv confidence=0.15 eta=1 least_samples=2",
    "feddiv/persistent confidence=0.15 least_samples=2",
    "fedcorr confidence=0.15 clean_threshold=0.5 prox=squared loss_space=nll eval_aug=weak chunk=2",
    "fednoro min_count=3 dist=global eval_aug=weak gmm_cov=diag",
    "trimmed-mean statistics=mean",
    "fedrn head_only_features=false keep=fp16",
    "fedlsr js=sum entropy=plain entropy_weight=0.3",
    "rofl centroid=sum",
    "fedelc per_class=false",
    "jointopt labelling=hard prior=given finish=0.3 fnbench_history=true aggregator=median",
    "selfie threshold=0.3 reuse=false",
    "fedefc monitor_share=0 patience=1",
    "forward scope=global",
    "fl-coteaching/plus disagree_from=1 empty=small",
    "feddyn scaled=false",
    "fedrg rows=all",
    "fedsir class_floor=3 provider_floor=3",
)


def cases():
    """Every method and variant of the two packs in two lengths, and the changed ones."""
    registry = default_methods()
    packs = {name: registry.method_class(name).__module__.split(".")[0] for name in registry.names()}
    methods = [*(name for name, pack in packs.items() if pack in PACKS), "fedgr/released release=a"]
    both = [f"{method} {length}" for method in methods for length in ("two", "six")]
    return [*both, *(f"{method} skewed" for method in CHANGED)]


CASES = cases()
EARLY = 2  # rounds in which a CPU that rounds otherwise has not yet flipped a selection
PERCENT = ("accuracy", "memorised", "coverage")  # shares of few images, of which some flip on another CPU
PASSES = ("forward", "backward")  # follow the selections
ALWAYS = ("accuracy", "loss")  # floats that are compared in all rounds


def folders(name, out):
    """The folders of the runs of a suite."""
    file = Path(out) / f"{name}.toml"
    file.write_text(SUITES[name])
    told = flnl("suite", file, "--dry-run", "--json", "--device", "cpu", "--out", "runs").json
    return [run["run_dir"] for run in told["runs"]]


def fingerprint(options):
    return flnl("scenario", "show", *options, "--json").json["fingerprint"]


def key(options):
    return " ".join(map(str, options))


def read(name):
    return json.loads((GOLDEN / f"{name}.json").read_text())


# -- rounds ------------------------------------------------------------------------------------------
def run_case(case, out):
    """The rounds of a case, without the times, and the final global weights."""
    method, *changes, length = case.split()
    values = dict(change.split("=") for change in changes)
    run = fb.run(method, set=values, out=out, save_model=True, **LENGTHS[length])
    rounds = rounds_of(run.folder)
    for row in rounds:
        del row["counts"]["reads"]  # names, not numbers: tests/test_assumptions.py
    return rounds, load_file(run.folder / "final.safetensors")


def digest(rounds, weights):
    """A hash of the rounds and a hash of the weights; a field added to the rounds changes only the first."""
    tensors = {name: [str(w.dtype), w.shape, w.tobytes().hex()] for name, w in weights.items()}
    texts = [json.dumps(part, sort_keys=True).encode() for part in (rounds, tensors)]
    return " ".join(hashlib.blake2b(text, digest_size=6).hexdigest() for text in texts)


def kind_of_cpu():
    """What decides how numbers are rounded here: instructions, model of the CPU, libraries."""
    here = machine()
    libraries = [f"{name} {here['libraries'][name]}" for name in ("torch", "numpy", "scipy", "scikit-learn")]
    return ", ".join([here["instructions"], here["cpu"], *libraries])


def columns(rounds):
    """The numbers of all rounds by name; of those that drift apart on another CPU, the first rounds alone."""
    rows = [dict(flat(row)) for row in rounds]
    table = {}
    for name in sorted({name for row in rows for name in row}):
        values = [row.get(name) for row in rows]
        drifts = name in PASSES or any(isinstance(value, float) for value in values)
        table[name] = values[:EARLY] if drifts and name not in ALWAYS else values
    return table


def flat(row, start=""):
    """The numbers of a round, their names preceded by those of the tables that they are in."""
    for name, value in row.items():
        if isinstance(value, dict):
            yield from flat(value, f"{start}{name}.")
        else:
            yield start + name, value


def compact(values):
    """Six digits of each number, and one number where all rounds have the same."""
    short = [float(f"{value:.6g}") if isinstance(value, float) else value for value in values]
    return short[:1] if all(value == short[0] for value in short) else short


def near(golden, name, number):
    """The values that another CPU may give.

    Training multiplies small differences of rounding. Measured on one CPU with the kernels of AVX512, AVX2
    and SSE: a loss differs by at most a thousandth in the first two rounds and by a tenth later; where one
    sample is judged otherwise, or Krum chooses another client, the accuracy differs by ten points. Then, a
    class may have too few samples for a mixture, too.
    """
    early = number < EARLY
    if name == "counts.mixtures" and not early:
        return pytest.approx(golden, abs=2)
    if not isinstance(golden, float):
        return golden
    if any(word in name for word in PERCENT):
        return pytest.approx(golden, abs=4.0 if early else 15.0)
    share = 0.2 if not early else 5e-2 if name.startswith("diagnostics.") else 3e-3
    return pytest.approx(golden, rel=share, abs=share)


def merged(digests, kind, made):
    """All digests and those made here; other kinds of CPU lose the digests of runs that have changed."""
    before = digests.get(kind, {})
    changed = {case for case, new in made.items() if before.get(case, new) != new}
    keep = made.keys() - changed
    others = {other: {case: old[case] for case in old if case in keep} for other, old in digests.items()}
    return {**others, kind: made}


@pytest.mark.parametrize("name", SUITES)
def test_runs_keep_their_folders(name, tmp_path):
    assert folders(name, tmp_path) == read("folders")[name]


@pytest.mark.parametrize("options", SCENARIOS, ids=key)
def test_scenarios_keep_their_fingerprints(options):
    assert fingerprint(options) == read("fingerprints")[key(options)]


@pytest.mark.parametrize("case", CASES)
def test_methods_keep_their_numbers(case, tmp_path):
    golden, kind = read("rounds").get(case), kind_of_cpu()
    assert golden, f"tests/golden has no numbers of {case!r}; {WRITE}"
    rounds, weights = run_case(case, tmp_path)
    now = columns(rounds)
    assert now.keys() == golden.keys()
    for name, values in now.items():
        then = golden[name] * (len(values) if len(golden[name]) == 1 else 1)
        for number, (value, old) in enumerate(zip(values, then, strict=True)):
            assert value == near(old, name, number), f"{name} in round {number}"
    known = read("digests").get(kind, {}).get(case)
    if known is None:
        warnings.warn(f"compared with a tolerance only: tests/golden has no digest for {kind}", stacklevel=1)
    else:
        assert digest(rounds, weights) == known, f"the rounds or the weights have other bits; {WRITE}"


def test_golden_numbers_are_of_methods_that_exist():
    assert read("rounds").keys() <= set(CASES)


def test_a_digest_covers_every_number_and_every_bit_of_the_weights():
    rows, weights = [{"loss": 0.1, "counts": {"samples": 3}}], {"a": np.zeros(2, np.float32)}
    one, other = digest(rows, weights).split()
    for change in ({"loss": math.nextafter(0.1, 1)}, {"counts": {"samples": 4}}):
        changed, same = digest([rows[0] | change], weights).split()
        assert changed != one
        assert same == other
    for moved in ({"b": weights["a"]}, {"a": -weights["a"]}, {"a": weights["a"].astype(np.float64)}):
        same, changed = digest(rows, moved).split()
        assert same == one
        assert changed != other


def test_writing_keeps_the_digests_of_other_kinds_of_cpu_but_for_runs_that_have_changed():
    before = {"ours": {"a": "1", "b": "2", "gone": "3"}, "theirs": {"a": "4", "b": "5", "gone": "6"}}
    assert merged(before, "ours", {"a": "1", "b": "9", "new": "7"}) == {
        "ours": {"a": "1", "b": "9", "new": "7"},
        "theirs": {"a": "4"},
    }
    assert merged(before, "third", {"a": "8", "b": "9"}) == {
        "ours": {"a": "1", "b": "2"},
        "theirs": {"a": "4", "b": "5"},
        "third": {"a": "8", "b": "9"},
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as out:
        results = {case: run_case(case, out) for case in CASES}
        made = {
            "folders": {name: folders(name, out) for name in SUITES},
            "fingerprints": {key(options): fingerprint(options) for options in SCENARIOS},
            "rounds": {
                case: {name: compact(values) for name, values in columns(rounds).items()}
                for case, (rounds, _) in results.items()
            },
            "digests": merged(
                read("digests"), kind_of_cpu(), {case: digest(*run) for case, run in results.items()}
            ),
        }
    for name, content in made.items():
        indent = 0 if name == "digests" else None
        lines = [f"{json.dumps(key)}: {json.dumps(value, indent=indent)}" for key, value in content.items()]
        (GOLDEN / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
