"""The global weights of a run as files: the final ones and those of the best round."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from flnl_bench.api import Method, Weights, network_weights
from flnl_bench.atomic_files import replace_file
from flnl_bench.config import RunConfig
from flnl_bench.data import Augmentation, Dataset
from flnl_bench.engine.augmentation import Views, draw_view
from flnl_bench.engine.client import EVALUATION_BATCH
from flnl_bench.engine.devices import CPU, seeded
from flnl_bench.errors import BadInput, require, unknown
from flnl_bench.methods import default_methods
from flnl_bench.models import make_network
from flnl_bench.random_streams import seed_of
from flnl_bench.results.run_record import parse_config

if TYPE_CHECKING:
    from flnl_bench.trackers import Warn

WEIGHT_FILES = {"final": "final.safetensors", "best": "best.safetensors"}
_ABOUT_KEY = "flnl_bench"  # of the description in a file's metadata


class Keeper:
    """Writes the weights of a run while it is running."""

    def __init__(
        self,
        folder: Path,
        config: RunConfig,
        dataset: Dataset,
        rounds: Sequence[Mapping[str, Any]],
        warn: Warn,
    ) -> None:
        """Resume after `rounds`: the weights of the best one may be in their file."""
        self.folder = folder
        self.about = {
            "config": config.as_dict(),
            "classes": dataset.classes,
            "channels": dataset.train_x.shape[1],
            "size": dataset.train_x.shape[2:],
            "mean": dataset.mean,
            "std": dataset.std,
            "augmentation": dataclasses.asdict(dataset.augmentation),
        }
        self.best = None  # accuracy of the best weights in the file
        with contextlib.suppress(BadInput):
            about = _about(folder / WEIGHT_FILES["best"])
            if about["round"] < len(rounds):  # else the stop undid that round
                self.best = about["accuracy"]
        known = [row["accuracy"] for row in rounds if row["accuracy"] is not None]
        if known and self.best != max(known):
            warn("the weights of the best round so far were not kept; best.safetensors is of a later one")

    def round(self, weights: Weights, row: Mapping[str, Any]) -> None:
        """Keep the weights if they are the best so far; called before the round is checkpointed."""
        accuracy = row["accuracy"]
        if accuracy is not None and (self.best is None or accuracy > self.best):
            self._write("best", weights, row)
            self.best = accuracy

    def end(self, weights: Weights, row: Mapping[str, Any]) -> None:
        """Keep the final weights."""
        self._write("final", weights, row)

    def _write(self, which: str, weights: Weights, row: Mapping[str, Any]) -> None:
        about = {**self.about, "round": row["round"], "accuracy": row["accuracy"]}
        tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()}
        replace_file(
            self.folder / WEIGHT_FILES[which], save(tensors, metadata={_ABOUT_KEY: json.dumps(about)})
        )


# -- reading -----------------------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SavedModel:
    """The global model of a run after one of its rounds."""

    config: RunConfig
    round: int  # from 0
    accuracy: float | None  # on the test set, in percent
    classes: tuple[str, ...]
    weights: Weights  # by name, on the CPU
    network: nn.Module  # with these weights, in evaluation mode; takes normalised images
    method: Method
    views: Views
    shape: tuple[int, ...]  # of an image [C, H, W]

    @torch.inference_mode()
    def logits(self, images: np.ndarray) -> Tensor:
        """Return the logits of uint8 images [N, C, H, W], normalised and cropped as in the run's test."""
        self._check(images)
        outputs = []
        for batch in np.split(images, range(EVALUATION_BATCH, len(images), EVALUATION_BATCH)):
            draw = draw_view("plain", len(batch), self.views.augmentation, np.random.default_rng(0))
            shown = self.views.render(torch.from_numpy(np.ascontiguousarray(batch)), draw)
            outputs.append(self.method.predict(self.network, shown))
        return torch.cat(outputs)

    def predict(self, images: np.ndarray) -> np.ndarray:
        """Return the classes, as numbers, of uint8 images [N, C, H, W]."""
        return self.logits(images).argmax(1).numpy()

    def _check(self, images: object) -> None:
        """Refuse images of another type or size: floats from 0 to 1 would be read as black."""
        fits, form = False, type(images).__name__
        if isinstance(images, np.ndarray):
            form = f"{images.dtype} {[*images.shape]}"
            sizes = zip(self.shape, images.shape[1:], strict=False)
            fits = (images.dtype, images.ndim) == (np.uint8, 4) and all(a == b for a, b in sizes)
        wanted = ", ".join(map(str, self.shape))
        require(fits, "images", form, f"a NumPy array of uint8 [N, {wanted}], as the data set has them")

    def __repr__(self) -> str:
        return f"<SavedModel {self.config.method} after round {self.round + 1}: {self.accuracy} %>"


def load_model(run: str | PathLike[str], which: str = "best") -> SavedModel:
    """Load the global model that a run with `--save-model` kept.

    Args:
        run: the folder of the run.
        which: "best", the weights of the round with the highest test accuracy, or "final".
    """
    if which not in WEIGHT_FILES:
        raise unknown("weights", which, WEIGHT_FILES)
    path = Path(run).expanduser() / WEIGHT_FILES[which]
    about = _about(path)
    config, augmentation = parse_config(about["config"]), Augmentation(**about["augmentation"])
    method = default_methods().method_class(config.method)(**config.hyperparameters)
    weights = load_file(path)
    cpu = torch.device("cpu")
    return SavedModel(
        config=config,
        round=about["round"],
        accuracy=about["accuracy"],
        classes=tuple(about["classes"]),
        weights=weights,
        network=_network(config, method, about["channels"], len(about["classes"]), weights),
        method=method,
        views=Views(augmentation, tuple(about["mean"]), tuple(about["std"]), cpu),
        shape=(about["channels"], *about["size"]),
    )


def _about(path: Path) -> dict[str, Any]:
    try:
        with safe_open(path, "pt") as file:
            about: dict[str, Any] = json.loads(file.metadata()[_ABOUT_KEY])
            return about
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise BadInput(f"there is no folder {path.parent}") from None
        raise BadInput(f"there is no {path}; was the run made with --save-model (save_model=True)?") from None
    except (OSError, SafetensorError, TypeError, KeyError, ValueError):
        raise BadInput(f"{path} does not hold weights of flnl-bench") from None


def _network(config: RunConfig, method: Method, channels: int, classes: int, weights: Weights) -> nn.Module:
    """Build the method's model with these weights; parts that stay on clients are not in them."""

    def new_net() -> nn.Module:
        training = config.training
        return make_network(training.model, channels=channels, classes=classes, norm=training.norm)

    with seeded(seed_of(config.seed, "initial weights"), CPU):  # of parts that are built but not saved
        network: nn.Module = method.build(new_net).requires_grad_(False).eval()
    odd = set(weights) - set(network_weights(network))
    if odd:
        raise BadInput(
            f"the saved weights do not fit {config.method} as it is now: {', '.join(sorted(odd)[:3])}"
        )
    network.load_state_dict(weights, strict=False)
    return network
