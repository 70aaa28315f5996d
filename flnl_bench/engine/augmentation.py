"""The views of an image: plain, weakly and strongly augmented, on a whole batch at a time.

All randomness is drawn on the host before anything is rendered, so a view depends neither on the
device nor on how the images are cut into batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from flnl_bench.engine.devices import to_device
from flnl_bench.engine.randaugment import draw_operations, rand_augment, rotations, warp
from flnl_bench.errors import BadInput, unknown

if TYPE_CHECKING:
    from flnl_bench.data.dataset import Augmentation

VIEWS = {
    "plain": "the image as it is, cropped at the centre",
    "weak": "padded crop, flip, rotation as the data set allows",
    "strong": "reflected or resized crop, flip, three RandAugment operations, Cutout",
    "strong-if-colour": "strong for colour images, weak for others",
}
CUTOUT = (125, 123, 114)
LUMINANCE = (0.299, 0.587, 0.114)


@dataclass(frozen=True)
class Draw:
    """The random parameters of the images of one view, one row per image.

    Places and lengths are shares in [0, 1), because a draw does not know the stored images' size.
    """

    view: str
    corner: np.ndarray  # [N, 2] of the crop, among all possible ones: down, right
    flip: np.ndarray  # [N]
    degrees: np.ndarray  # [N] of the weak view, counter-clockwise
    region: np.ndarray  # [N, 4] of a resized crop: top, left, height, width; else [N, 0]
    operation: np.ndarray  # [N, 3] of the strong view: numbers in OPERATION_NAMES; else [N, 0]
    magnitude: np.ndarray  # [N, 3] of the strong view; else [N, 0]
    cutout: np.ndarray  # [N, 3] of the strong view: centre down, centre right, side

    def __len__(self) -> int:
        return len(self.flip)

    def __getitem__(self, rows: slice | np.ndarray) -> Draw:
        return replace(
            self, **{f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name != "view"}
        )


def check_views(method: str, views: object) -> None:
    """Refuse a value that is not a non-empty sequence of names of views."""
    if isinstance(views, str) or not isinstance(views, Sequence) or not views:
        raise BadInput(f"{method}: views must return a tuple of names such as ('weak',), not {views!r}")
    for view in views:
        if view not in VIEWS:
            raise unknown("view", str(view), VIEWS, f"views of {method}")


def draw_view(view: str, count: int, augmentation: Augmentation, rng: np.random.Generator) -> Draw:
    """Draw the parameters of `count` images; a plain view draws nothing."""
    if view not in VIEWS:
        raise unknown("view", view, VIEWS)
    if view == "strong-if-colour":
        view = "strong" if augmentation.colour else "weak"
    strong, random = view == "strong", view != "plain"
    shares = rng.random((count, 7)) if random else np.zeros((count, 7))
    nothing = np.zeros((count, 0))
    operation, magnitude = (
        draw_operations(count, augmentation.operations, rng) if strong else (nothing, nothing)
    )
    return Draw(
        view=view,
        corner=shares[:, :2],
        flip=(shares[:, 2] < 0.5) & (random and augmentation.flip),
        degrees=(2 * shares[:, 3] - 1) * augmentation.rotation,
        region=_draw_regions(count, rng) if strong and augmentation.resized_crop else nothing,
        operation=operation,
        magnitude=magnitude,
        cutout=shares[:, 4:],
    )


def _draw_regions(count: int, rng: np.random.Generator) -> np.ndarray:
    """Areas of 8 to 100 % with sides 3:4 to 4:3, as torchvision's RandomResizedCrop draws them."""
    tries = 10
    area = rng.uniform(0.08, 1.0, (count, tries))
    ratio = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3), (count, tries)))
    sides = np.sqrt(np.stack([area / ratio, area * ratio], axis=2))  # [N, tries, 2] height, width
    sides[:, -1] = np.minimum(sides[:, -1], 1.0)
    first = (sides <= 1).all(axis=2).argmax(axis=1)
    side = sides[np.arange(count), first]
    return np.concatenate([rng.random((count, 2)) * (1 - side), side], axis=1)


class Views:
    """Renders the views of one data set's images on one device."""

    def __init__(
        self,
        augmentation: Augmentation,
        mean: Sequence[float],
        std: Sequence[float],
        device: torch.device | str,
    ) -> None:
        self.augmentation = augmentation
        self.device = torch.device(device)
        column = np.array([[*mean], [*std]], dtype=np.float64)[:, :, None, None] * 255
        grey = np.array(CUTOUT) if len(mean) == 3 else np.full(len(mean), round(np.dot(CUTOUT, LUMINANCE)))
        self._mean = to_device(column[0].astype(np.float32), self.device)  # [C, 1, 1]
        self._scale = to_device((1 / column[1]).astype(np.float32), self.device)
        self._grey = to_device(grey.astype(np.uint8)[:, None, None], self.device)

    def render(self, images: Tensor, draw: Draw) -> Tensor:
        """Render uint8 images [B, C, H, W] as normalised images [B, C, size, size] of torch's default."""
        if len(images) != len(draw):
            raise ValueError(f"{len(images)} images but {len(draw)} draws")
        if draw.view == "plain":
            return self._normalise(self._centre(images).float())
        if draw.view == "weak":
            images = self._crop(images, draw, reflect=False)
            if self.augmentation.rotation > 0:
                images = warp(images, to_device(rotations(draw.degrees).astype(np.float32), self.device))
            return self._normalise(images.float())
        images = (
            self._resize(images, draw) if self.augmentation.resized_crop else self._crop(images, draw, True)
        )
        images = rand_augment(images, draw.operation, draw.magnitude, self.augmentation.colour)
        if self.augmentation.cutout:
            images = self._cut_out(images, draw.cutout)
        return self._normalise(images.float())

    def _normalise(self, images: Tensor) -> Tensor:
        # The same images in double precision, where a user compares codes with torch's default at float64.
        return images.sub_(self._mean).mul_(self._scale).to(torch.get_default_dtype())

    def _centre(self, images: Tensor) -> Tensor:
        size = self.augmentation.size
        top, left = ((side - size) // 2 for side in self._sides(images, pad=0))
        return images[:, :, top : top + size, left : left + size]

    def _crop(self, images: Tensor, draw: Draw, reflect: bool) -> Tensor:
        """Pad, crop and flip in one gather; reflected pixels are read in place, never written."""
        pad, pixels = self.augmentation.pad, np.arange(self.augmentation.size)
        height, width = self._sides(images, pad)
        rows, columns = (
            (share * (side - len(pixels) + 1)).astype(np.int64)[:, None] + pixels
            for share, side in zip(draw.corner.T, (height, width), strict=True)
        )
        columns = np.where(draw.flip[:, None], columns[:, ::-1], columns)  # [B, S]
        if reflect:
            rows, columns = (
                np.pad(np.arange(side - 2 * pad), pad, mode="reflect")[place]
                for side, place in ((height, rows), (width, columns))
            )
        elif pad:
            images = F.pad(images, (pad, pad, pad, pad))
        down, right = to_device(np.stack([rows * images.shape[3], columns]), self.device)
        index = (down.unsqueeze(2) + right.unsqueeze(1)).flatten(1)  # [B, S·S]
        index = index.unsqueeze(1).expand(-1, images.shape[1], -1)
        return images.flatten(2).gather(2, index).view(*images.shape[:2], len(pixels), len(pixels))

    def _resize(self, images: Tensor, draw: Draw) -> Tensor:
        """Scale each image's region to the full size, bilinear."""
        size = self.augmentation.size
        centres = (np.arange(size) + 0.5) / size
        rows, columns = (
            2 * (first[:, None] + side[:, None] * centres) - 1
            for first, side in zip(draw.region.T[:2], draw.region.T[2:], strict=True)
        )
        columns = np.where(draw.flip[:, None], columns[:, ::-1], columns)
        down, right = to_device(np.stack([rows, columns]).astype(np.float32), self.device)
        shape = (len(images), size, size)
        grid = torch.stack([right.unsqueeze(1).expand(shape), down.unsqueeze(2).expand(shape)], dim=3)
        scaled = F.grid_sample(images.float(), grid, padding_mode="border", align_corners=False)
        return scaled.round_().to(torch.uint8)

    def _cut_out(self, images: Tensor, cutout: np.ndarray) -> Tensor:
        """Cover a square, cut at the right and lower border, by grey, as FixMatch's code does."""
        size = self.augmentation.size
        side = cutout[:, 2] * size * self.augmentation.cutout  # v
        # Moved, not cut, at the upper and left border; the last pixel of PIL's rectangles is covered, too.
        first = np.maximum(0, cutout[:, :2].T * size - side / 2).astype(np.int64)  # [2, B]
        last = (first + side).astype(np.int64)
        pixels = np.arange(size)
        inside = (pixels >= first[:, :, None]) & (pixels <= last[:, :, None])  # [2, B, S]
        down, right = to_device(inside.astype(np.uint8) * np.uint8(255), self.device)
        hole = down[:, None, :, None] & right[:, None, None, :]  # [B, 1, S, S]
        # Bits instead of a broadcast boolean mask, which is ten times slower on a CPU.
        return images.bitwise_and_(~hole).bitwise_or_(hole & self._grey)

    def _sides(self, images: Tensor, pad: int) -> tuple[int, int]:
        height, width = (side + 2 * pad for side in images.shape[2:])
        if min(height, width) < self.augmentation.size:
            size = self.augmentation.size
            raise BadInput(
                f"images of {height}×{width} (padded by {pad}) are smaller than the crop of {size}×{size}"
            )
        return height, width
