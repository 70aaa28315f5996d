"""The paper's order of methods and settings, and which settings an average is taken over."""

from __future__ import annotations

from collections.abc import Iterable

METHODS = (
    "fedavg",
    "fedavg/strong",
    "fedprox",
    "fl-coteaching",
    "fl-dividemix",
    "fedcorr",
    "fednoro",
    "feddiv",
    "fedfixer",
    "fedgr",
)
NOISY = ("sym-0.6", "sym-1.0", "asym-0.6", "asym-1.0", "mixed-0.6", "mixed-1.0")
SETTINGS = ("clean", *NOISY)
_KINDS = ("clean", "sym", "asym", "asym-super", "mixed", "real")


def method_key(name: str) -> tuple[int, str]:
    """Sorts the known methods as in the paper, then the others and the variants by name."""
    return (METHODS.index(name) if name in METHODS else len(METHODS), name)


def setting_key(name: str) -> tuple[int, int, str]:
    """Sorts the paper's settings as in the paper, then the others by kind and name."""
    if name in SETTINGS:
        return (0, SETTINGS.index(name), name)
    kinds = [place for place, kind in enumerate(_KINDS) if name == kind or name.startswith(f"{kind}-")]
    return (1, kinds[-1] if kinds else len(_KINDS), name)


def scored(rows: Iterable[Iterable[str]]) -> list[str]:
    """The settings that Avg and rank are over, from the settings of each row.

    They are the paper's six where two rows can be compared over them, however many ablations have fewer.
    Else, of the sets of noisy settings that a row has or two rows share, it is the one whose complete rows
    hold the most cells: so a row with a setting more, or with few of them, takes the average from no other.
    If some of the paper's settings are in it, those alone count.
    """
    noisy = [frozenset(row) - {"clean"} for row in rows]
    if not any(noisy):
        return ["clean"]
    if sum(row.issuperset(NOISY) for row in noisy) > 1:
        return list(NOISY)

    def order(names: frozenset[str]) -> tuple[int, int, list[tuple[int, int, str]]]:
        complete = sum(names <= row for row in noisy)
        return -complete * len(names), -len(names), sorted(map(setting_key, names))

    shared = {one & other for one in set(noisy) for other in set(noisy)}
    chosen = min(shared, key=order)
    return sorted(chosen & set(NOISY) or chosen, key=setting_key)
