"""What all runs of one table share; runs that differ in any of it are never in one table."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flnl_bench.config import NUMBERS_VERSION
from flnl_bench.errors import BadInput
from flnl_bench.leaderboard.runs import Run
from flnl_bench.values import whole, written

PAPER = "paper"


@dataclass(frozen=True)
class Protocol:
    """One table: a data set, a partition and everything that changes the protocol."""

    dataset: str
    partition: str
    preset: str
    training: Mapping[str, Any]
    device: str
    numbers: int
    world: int = 0  # > 0: scenarios that are not those of the table before
    from_files: bool = False  # imported scenarios that no run of this table's kind has generated

    @functools.cached_property
    def changed(self) -> dict[str, Any]:
        """What differs from the preset as this version of the package has it."""
        from flnl_bench.presets import load_preset

        try:
            plain = dataclasses.asdict(load_preset(self.preset).training(self.dataset))
        except BadInput:  # a preset that this version does not know
            return dict(self.training)
        names = {**plain, **self.training}
        return {k: self.training.get(k) for k in names if whole(plain.get(k)) != whole(self.training.get(k))}

    @property
    def name(self) -> str:
        """The protocol in a few words, different for every table of a data set and partition."""
        changed = self.changed
        parts = [f"{self.preset} with {written(changed)}" if changed else self.preset]
        if self.device != "cpu":
            parts.append(self.device)
        if self.numbers != NUMBERS_VERSION:
            parts.append(f"numbers version {self.numbers}")
        if self.from_files:
            parts.append("imported scenarios" + (f" {self.world + 1}" if self.world else ""))
        elif self.world:
            parts.append("other scenarios" + (f" {self.world}" if self.world > 1 else ""))
        return " · ".join(parts)

    @property
    def title(self) -> str:
        """The name of the table."""
        return f"{self.dataset} · {self.partition} · {self.name}"

    @property
    def is_paper(self) -> bool:
        """Whether its numbers may be compared with those of the paper."""
        return self.preset == PAPER and not self.changed and not self.world and not self.from_files

    @property
    def line(self) -> str:
        """The protocol in a line."""
        about = {"samples": None, **self.training}
        images = "all images" if about["samples"] is None else f"{about['samples']} images"
        return (
            f"{about.get('model')}, {images}, {about.get('clients')} clients, "
            f"{about.get('fraction')} of them a round, "
            f"{about.get('rounds')} rounds of {about.get('epochs')} local epochs, "
            f"batch {about.get('batch_size')}, lr {about.get('lr')}, {self.device}"
        )


def protocol_of(run: Run) -> Protocol:
    """The table of a run, before scenarios are looked at."""
    return Protocol(run.dataset, run.partition, run.preset, run.training, run.device, run.numbers)
