"""RandAugment of FixMatch (Sohn et al., NeurIPS 2020) on a batch in which every image has its own draw.

The images are sorted by operation, each operation runs once on its slice with one parameter an
image, and the order is restored at the end. The operations are written here because torchvision's
take one parameter a batch and because importing it costs seconds (it loads torch._dynamo); the
tests hold every one of them to torchvision's result.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from flnl_bench.engine.devices import to_device

# Name and range of the magnitude. The five geometric ones come last: they run as one.
RANGES: dict[str, tuple[float, float]] = {
    "identity": (0.0, 0.0),
    "autocontrast": (0.0, 0.0),
    "equalise": (0.0, 0.0),
    "posterise": (4.0, 8.0),  # bits; truncated, so 4 to 7 as in FixMatch
    "solarise": (256.0, 0.0),  # threshold; drawn downwards, so never exactly 0
    "brightness": (0.05, 0.95),
    "contrast": (0.05, 0.95),
    "colour": (0.05, 0.95),
    "sharpness": (0.05, 0.95),
    "rotate": (-30.0, 30.0),  # degrees, counter-clockwise
    "shear-x": (-0.3, 0.3),
    "shear-y": (-0.3, 0.3),
    "translate-x": (-0.3, 0.3),  # share of the size
    "translate-y": (-0.3, 0.3),
}
OPERATION_NAMES = tuple(RANGES)
NUMBER = {name: number for number, name in enumerate(OPERATION_NAMES)}
GEOMETRY = NUMBER["rotate"]
GROUP_END = {name: number + 1 for name, number in NUMBER.items()} | {"rotate": len(OPERATION_NAMES)}


def draw_operations(count: int, rounds: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw the operations and their magnitudes, both [count, rounds]."""
    operation = rng.integers(len(OPERATION_NAMES), size=(count, rounds))
    low, high = np.array(list(RANGES.values())).T[:, operation]
    return operation, low + (high - low) * rng.random((count, rounds))


def rand_augment(images: Tensor, operation: np.ndarray, magnitude: np.ndarray, colour: bool = True) -> Tensor:
    """Apply to image i of a square uint8 batch [B, C, S, S] the operations `operation[i]`, in order."""
    rounds = operation.shape[1]
    if not rounds:
        return images
    order = operation.argsort(axis=0, kind="stable").T  # [R, B]
    place = order.argsort(axis=1)
    # From one round's order straight to the next's; the last move restores the order of the input.
    moves = np.stack([order[0], *(place[r][order[r + 1]] for r in range(rounds - 1)), place[-1]])
    values = parameters(operation, magnitude, images.shape[-1])
    sorted_values = np.stack([values[order[r], r] for r in range(rounds)])
    on_device, sorted_on_device = to_device(moves, images.device), to_device(sorted_values, images.device)
    for r in range(rounds):
        images = images.index_select(0, on_device[r])
        bounds = np.searchsorted(operation[order[r], r], range(len(OPERATION_NAMES) + 1)).tolist()
        _apply_round(images, sorted_on_device[r], bounds, colour)
    return images.index_select(0, on_device[-1])


def _apply_round(images: Tensor, values: Tensor, bounds: list[int], colour: bool) -> None:
    """Overwrite images sorted by operation; operation k owns the slice bounds[k]:bounds[k + 1]."""
    for name, apply in OPERATIONS.items():
        # Grey images have no saturation; all other operations mean something on one channel.
        if name != "colour" or (colour and images.shape[1] == 3):
            first, last = bounds[NUMBER[name]], bounds[GROUP_END[name]]
            if first < last:
                images[first:last] = apply(images[first:last], values[first:last])


def parameters(operation: np.ndarray, magnitude: np.ndarray, size: int) -> np.ndarray:
    """The arguments of the operations on the device: six float32 values for each draw."""
    values = np.zeros((*operation.shape, 6))
    values[..., 0] = magnitude
    values[..., 1] = 1.0 - magnitude
    chosen = operation == NUMBER["posterise"]
    values[chosen, 0] = 256 - 2 ** (8 - magnitude[chosen].astype(int))  # the bits that stay
    chosen = operation == NUMBER["solarise"]
    values[chosen, 0] = np.ceil(magnitude[chosen]) - 1  # x ≥ threshold ⇔ x > this, which fits a uint8
    chosen = operation >= GEOMETRY
    values[chosen] = _matrices(operation[chosen], magnitude[chosen], size)
    return values.astype(np.float32)


def _matrices(operation: np.ndarray, magnitude: np.ndarray, size: int) -> np.ndarray:
    """The inverse maps as rows (xx, xy, x0, yx, yy, y0) about the centre of the image."""
    m, zero = magnitude, np.zeros_like(magnitude)
    shear_x, shear_y = (np.where(operation == NUMBER[f"shear-{axis}"], m, zero) for axis in "xy")
    move_x, move_y = (np.where(operation == NUMBER[f"translate-{axis}"], m, zero) for axis in "xy")
    matrix = rotations(np.where(operation == NUMBER["rotate"], m, zero))
    matrix[:, 1] += shear_x
    matrix[:, 3] += shear_y
    # Shears keep the top left corner in place, as in PIL.
    matrix[:, 2] = size * (shear_x / 2 - move_x)
    matrix[:, 5] = size * (shear_y / 2 - move_y)
    return matrix


def rotations(degrees: np.ndarray) -> np.ndarray:
    """The inverse maps [B, 6] of counter-clockwise rotations about the centre."""
    angle = np.deg2rad(degrees)
    cos, sin, zero = np.cos(angle), np.sin(angle), np.zeros_like(angle)
    return np.stack([cos, -sin, zero, sin, cos, zero], axis=1)


def warp(images: Tensor, matrix: Tensor) -> Tensor:
    """Map each square image by its own inverse affine map: nearest pixel, black outside; as floats."""
    half = images.shape[-1] / 2
    matrix = matrix.view(-1, 2, 3, 1)
    centred = (torch.arange(images.shape[-1], device=images.device) - (half - 0.5)) / half
    along_x = matrix[:, :, 0] * centred  # [B, 2, S]
    along_y = matrix[:, :, 1] * centred + matrix[:, :, 2] / half
    grid = along_x.unsqueeze(2) + along_y.unsqueeze(3)  # [B, 2, S, S]
    places = grid.permute(0, 2, 3, 1).float()  # also where torch's default is float64
    return F.grid_sample(images.float(), places, mode="nearest", align_corners=False)


def _autocontrast(x: Tensor, values: Tensor) -> Tensor:
    low, high = x.amin((2, 3), keepdim=True).float(), x.amax((2, 3), keepdim=True).float()
    flat = high == low
    scale = torch.where(flat, 1.0, 255.0 / (high - low))
    return x.float().sub_(torch.where(flat, 0.0, low)).mul_(scale).clamp_(0, 255)


def _equalise(x: Tensor, values: Tensor) -> Tensor:
    pixels = x.shape[2] * x.shape[3]
    if pixels < 256:
        return x  # a step below one grey level: PIL and torchvision leave such images alone
    flat = x.flatten(2).long()
    # Counts and their quotients are whole numbers far below 2^24: float32 is exact, and faster.
    histogram = torch.zeros(*x.shape[:2], 256, device=x.device)
    histogram.scatter_add_(2, flat, torch.ones(flat.shape, device=x.device))
    brightest = histogram.gather(2, flat.amax(2, keepdim=True))
    step = torch.div(pixels - brightest, 255, rounding_mode="floor")  # [B, C, 1]
    below = histogram.cumsum(2).sub_(histogram)
    table = below.add_((step / 2).floor_()).div_(step.clamp(min=1)).floor_().clamp_(max=255)
    table = torch.where(step > 0, table, torch.arange(256, device=x.device)).to(torch.uint8)
    return table.gather(2, flat).view_as(x)


def _posterise(x: Tensor, values: Tensor) -> Tensor:
    return x & _column(values, 0).to(torch.uint8)


def _solarise(x: Tensor, values: Tensor) -> Tensor:
    inverted = x > _column(values, 0).to(torch.uint8)
    return inverted.view(torch.uint8).mul_(255).bitwise_xor_(x)  # 255 - x where inverted


def _brightness(x: Tensor, values: Tensor) -> Tensor:
    return x.float().mul_(_column(values, 0))


def _contrast(x: Tensor, values: Tensor) -> Tensor:
    # The sum of the grey levels is a whole number below 2^24: the mean is exact in any order.
    image = x.float()
    return _blend(image, _grey(image).mean((1, 2, 3), keepdim=True), values)


def _colour(x: Tensor, values: Tensor) -> Tensor:
    image = x.float()
    return _blend(image, _grey(image), values)


def _sharpness(x: Tensor, values: Tensor) -> Tensor:
    image = x.float()
    rows = image[..., :-2] + image[..., 1:-1] + image[..., 2:]
    box = rows[..., :-2, :] + rows[..., 1:-1, :] + rows[..., 2:, :]
    inner = image[..., 1:-1, 1:-1]
    smooth = image.clone()
    smooth[..., 1:-1, 1:-1] = box.add_(inner * 4).div_(13).round_()  # weights 1, in the middle 5
    return _blend(image, smooth, values)


def _blend(image: Tensor, degenerate: Tensor, values: Tensor) -> Tensor:
    # Separate products and sum: a fused one rounds differently in a vector's tail, and then the
    # result would depend on the size of the batch.
    return image.mul_(_column(values, 0)).add_(degenerate * _column(values, 1))


def _grey(image: Tensor) -> Tensor:
    if image.shape[1] != 3:
        return image
    red, green, blue = image.unbind(1)
    return (red * 0.2989 + green * 0.587 + blue * 0.114).floor_().unsqueeze(1)


def _column(values: Tensor, number: int) -> Tensor:
    return values[:, number].view(-1, 1, 1, 1)


OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "autocontrast": _autocontrast,
    "equalise": _equalise,
    "posterise": _posterise,
    "solarise": _solarise,
    "brightness": _brightness,
    "contrast": _contrast,
    "colour": _colour,
    "sharpness": _sharpness,
    "rotate": warp,  # and the four after it
}
