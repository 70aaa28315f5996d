"""The views: every operation against torchvision's, and what must hold for any draw."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision.transforms import functional as reference

from flnl_bench.data.dataset import Augmentation
from flnl_bench.engine.augmentation import VIEWS, Views, draw_view
from flnl_bench.engine.randaugment import OPERATION_NAMES, RANGES, draw_operations, rand_augment
from flnl_bench.errors import BadInput

COLOUR = Augmentation(size=32)
TURNED = Augmentation(size=32, rotation=20.0)
CUT = Augmentation(size=24, pad=0, resized_crop=True)  # stored images are larger, as in clothing1m
DIGITS = Augmentation(size=8, pad=1, flip=False, colour=False)
KINDS = {"colour": (COLOUR, 3, 32), "turned": (TURNED, 3, 32), "cut": (CUT, 3, 28), "digits": (DIGITS, 1, 8)}


def some_images(count, channels, size, seed=0):
    """Smooth images, noise, and a flat one, so that extreme operations have something to do."""
    noise = np.random.default_rng(seed).integers(0, 256, (count, channels, size, size))
    ramp = np.linspace(20, 200, size * size).reshape(size, size)
    mixed = np.where(np.arange(count)[:, None, None, None] % 2, noise, (ramp + noise / 5).clip(0, 255))
    mixed[0] = 77
    return torch.from_numpy(mixed.astype(np.uint8))


def world(kind, count=40):
    augmentation, channels, stored = KINDS[kind]
    views = Views(augmentation, [0.5] * channels, [0.25] * channels, "cpu")
    return augmentation, views, some_images(count, channels, stored)


def grey_levels(rendered):
    return (rendered * 0.25 + 0.5) * 255


def expected(name, image, m):
    """torchvision's result for one image and one magnitude."""
    size = image.shape[-1]
    still = {"angle": 0.0, "translate": [0, 0], "scale": 1.0, "shear": [0.0, 0.0]}
    slope = math.degrees(math.atan(m))
    return {
        "identity": lambda: image,
        "autocontrast": lambda: reference.autocontrast(image),
        "equalise": lambda: reference.equalize(image),
        "posterise": lambda: reference.posterize(image, int(m)),
        "solarise": lambda: reference.solarize(image, m) if m <= 255 else image,
        "brightness": lambda: reference.adjust_brightness(image, m),
        "contrast": lambda: reference.adjust_contrast(image, m),
        "colour": lambda: reference.adjust_saturation(image, m),
        "sharpness": lambda: reference.adjust_sharpness(image, m),
        "rotate": lambda: reference.rotate(image, m),
        "shear-x": lambda: reference.affine(image, **still | {"shear": [slope, 0.0]}, center=[0, 0]),
        "shear-y": lambda: reference.affine(image, **still | {"shear": [0.0, slope]}, center=[0, 0]),
        "translate-x": lambda: reference.affine(image, **still | {"translate": [m * size, 0.0]}),
        "translate-y": lambda: reference.affine(image, **still | {"translate": [0.0, m * size]}),
    }[name]()


@pytest.mark.parametrize(("channels", "size"), [(3, 32), (1, 28), (1, 8), (3, 17)])
@pytest.mark.parametrize("name", OPERATION_NAMES)
def test_an_operation_equals_torchvision_image_by_image(name, channels, size):
    images = some_images(24, channels, size)
    low, high = RANGES[name]
    magnitude = low + (high - low) * np.linspace(0.013, 0.987, 24)[:, None]
    got = rand_augment(images, np.full((24, 1), OPERATION_NAMES.index(name)), magnitude)
    want = torch.stack([expected(name, image, m) for image, m in zip(images, magnitude[:, 0], strict=True)])
    assert got.dtype == torch.uint8
    if name in OPERATION_NAMES[: OPERATION_NAMES.index("rotate")]:
        assert torch.equal(got, want)
    else:  # a pixel whose source lies exactly between two others may round either way
        assert (got != want).float().mean() < 1e-3


def test_operations_run_in_the_order_drawn():
    images = some_images(60, 3, 32)
    operation, magnitude = draw_operations(60, 3, np.random.default_rng(1))
    want = images
    for column in range(3):
        columns = operation[:, [column]], magnitude[:, [column]]
        want = torch.cat([rand_augment(want[i : i + 1], *(c[i : i + 1] for c in columns)) for i in range(60)])
    assert torch.equal(rand_augment(images, operation, magnitude), want)


def test_all_operations_are_drawn_and_stay_in_their_range():
    operation, magnitude = draw_operations(2000, 3, np.random.default_rng(0))
    for number, (name, ends) in enumerate(RANGES.items()):
        drawn = magnitude[operation == number]
        assert 300 < len(drawn) < 570, name  # 6000 / 14 = 429, standard deviation 20
        assert min(ends) <= drawn.min() <= drawn.max() <= max(ends)


def test_colour_is_the_identity_where_the_data_set_says_so():
    images = some_images(8, 3, 32)
    draws = np.full((8, 1), OPERATION_NAMES.index("colour")), np.full((8, 1), 0.1)
    assert torch.equal(rand_augment(images, *draws, colour=False), images)
    assert not torch.equal(rand_augment(images, *draws, colour=True), images)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_rendered_in_pieces_is_bit_identical(kind, view):
    augmentation, views, images = world(kind, 97)
    draw = draw_view(view, 97, augmentation, np.random.default_rng(3))
    whole = views.render(images, draw)
    ends = [0, 1, 4, 36, 68, 97]
    pieces = [views.render(images[a:b], draw[a:b]) for a, b in pairwise(ends)]
    assert torch.equal(whole, torch.cat(pieces))
    order = np.random.default_rng(0).permutation(97)
    assert torch.equal(whole[order], views.render(images[order], draw[order]))


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_view_is_finite_has_the_right_shape_and_leaves_the_data_alone(kind, view):
    augmentation, views, images = world(kind)
    before = images.clone()
    rendered = views.render(images, draw_view(view, 40, augmentation, np.random.default_rng(0)))
    assert rendered.shape == (40, images.shape[1], augmentation.size, augmentation.size)
    assert rendered.dtype == torch.float32
    assert (grey_levels(rendered) > -0.01).all()
    assert (grey_levels(rendered) < 255.01).all()
    assert torch.equal(images, before)


class Count(TorchDispatchMode):
    """Counts what makes the host wait for the device."""

    def __init__(self):
        super().__init__()
        self.waits = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.name()
        masks = name.startswith("aten::index") and any(
            i is not None and i.dtype == torch.bool for i in (args[1] if isinstance(args[1], list) else [])
        )
        if masks or any(
            word in name for word in ("_local_scalar_dense", "nonzero", "masked_select", "bincount")
        ):
            self.waits.append(name)
        return function(*args, **kwargs or {})


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", KINDS)
def test_rendering_never_waits_for_the_device(kind, view):
    augmentation, views, images = world(kind)
    draw = draw_view(view, 40, augmentation, np.random.default_rng(0))
    with Count() as count:
        views.render(images, draw)
    assert count.waits == []


def test_the_same_generator_draws_the_same_view():
    augmentation, views, images = world("colour")
    first, again, other = (
        views.render(images, draw_view("strong", 40, augmentation, np.random.default_rng(seed)))
        for seed in (5, 5, 6)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_plain_view_draws_nothing_and_normalises():
    rng = np.random.default_rng(0)
    draw = draw_view("plain", 4, COLOUR, rng)
    assert rng.random() == np.random.default_rng(0).random()
    images = some_images(4, 3, 32)
    mean, std = [0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]
    got = Views(COLOUR, mean, std, "cpu").render(images, draw)
    torch.testing.assert_close(got, reference.normalize(images / 255, mean, std))


def test_a_plain_view_of_a_larger_image_is_its_centre():
    augmentation, views, images = world("cut")
    got = views.render(images, draw_view("plain", 40, augmentation, np.random.default_rng(0)))
    torch.testing.assert_close(grey_levels(got), images[:, :, 2:26, 2:26].float(), atol=1e-3, rtol=0)


@pytest.mark.parametrize(("reflect", "mode"), [(False, "constant"), (True, "reflect")])
@pytest.mark.parametrize("kind", ["colour", "digits", "cut"])
def test_a_crop_is_a_window_of_the_padded_image(kind, reflect, mode):
    augmentation, views, images = world(kind)
    draw = draw_view("weak", 40, augmentation, np.random.default_rng(0))
    got = views._crop(images, draw, reflect).numpy()
    pad, size = augmentation.pad, augmentation.size
    for image, flip, window in zip(images.numpy(), draw.flip, got, strict=True):
        padded = np.pad(image, ((0, 0), (pad, pad), (pad, pad)), mode=mode)
        places = range(padded.shape[1] - size + 1)
        windows = [padded[:, y : y + size, x : x + size] for y in places for x in places]
        assert any(np.array_equal(w[:, :, ::-1] if flip else w, window) for w in windows)


def test_crops_reach_every_place_and_half_of_them_are_flipped():
    draw = draw_view("weak", 2000, COLOUR, np.random.default_rng(0))
    assert set((draw.corner * 9).astype(int).ravel()) == set(range(9))
    assert 900 < draw.flip.sum() < 1100
    assert not draw_view("weak", 2000, DIGITS, np.random.default_rng(0)).flip.any()


def test_a_weak_rotation_equals_torchvision():
    augmentation, views, images = world("turned")
    draw = draw_view("weak", 40, augmentation, np.random.default_rng(0))
    assert 15 < np.abs(draw.degrees).max() <= 20
    cropped = views._crop(images, draw, False)
    want = torch.stack([reference.rotate(i, d) for i, d in zip(cropped, draw.degrees.tolist(), strict=True)])
    assert (grey_levels(views.render(images, draw)).round() != want).float().mean() < 1e-3


def test_the_whole_region_is_the_image_and_a_flip_mirrors_it():
    augmentation = Augmentation(size=28, pad=0, resized_crop=True)
    views, images = Views(augmentation, [0.5] * 3, [0.25] * 3, "cpu"), some_images(6, 3, 28)
    draw = draw_view("strong", 6, augmentation, np.random.default_rng(0))
    draw.region[:] = [0, 0, 1, 1]
    draw.flip[:] = [False, True] * 3
    got = views._resize(images, draw)
    assert torch.equal(got[::2], images[::2])
    assert torch.equal(got[1::2], images[1::2].flip(3))


def test_a_strong_view_may_do_without_operations():
    augmentation = Augmentation(size=28, pad=0, flip=False, operations=0, cutout=0)
    views, images = Views(augmentation, [0.5] * 3, [0.25] * 3, "cpu"), some_images(6, 3, 28)
    draws = [draw_view(name, 6, augmentation, np.random.default_rng(0)) for name in ("strong", "plain")]
    assert torch.equal(*(views.render(images, draw) for draw in draws))


def test_regions_lie_inside_the_image_and_vary():
    top, left, height, width = draw_view("strong", 2000, CUT, np.random.default_rng(0)).region.T
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + height <= 1 + 1e-9).all()
    assert (left + width <= 1 + 1e-9).all()
    area, ratio = height * width, width / height
    assert 0.08 <= area.min() < 0.15
    assert 0.8 < area.max() <= 1
    assert 3 / 4 - 1e-9 <= ratio.min() < ratio.max() <= 4 / 3 + 1e-9


@pytest.mark.parametrize(("kind", "grey"), [("colour", (125, 123, 114)), ("digits", (123,))])
def test_cutout_is_a_grey_square_of_at_most_half_the_side(kind, grey):
    augmentation, views, images = world(kind, 400)
    draw = draw_view("strong", 400, augmentation, np.random.default_rng(0))
    black = torch.zeros_like(views._crop(images, draw, True))
    covered = views._cut_out(black, draw.cutout)
    hole = covered.amax(1) > 0
    assert torch.equal(covered, hole.unsqueeze(1) * torch.tensor(grey, dtype=torch.uint8).view(-1, 1, 1))
    down, right = hole.any(2), hole.any(1)
    assert torch.equal(hole, down.unsqueeze(2) & right.unsqueeze(1))
    assert down.sum(1).max() == right.sum(1).max() == augmentation.size // 2
    assert down.sum(1).min() == right.sum(1).min() == 1


def test_cutout_covers_what_fixmatch_covers():
    """The square is moved inside at the top and left, and cut at the bottom and right."""
    views = Views(COLOUR, [0.5] * 3, [0.25] * 3, "cpu")
    shares = np.random.default_rng(5).random((10_000, 3))
    ours = views._cut_out(torch.zeros(len(shares), 3, 32, 32, dtype=torch.uint8), shares).amax(1) > 0
    assert ours.float().mean().item() == pytest.approx(0.0834, abs=0.002)
    for hole, (down, right, share) in zip(ours[:200], shares, strict=False):
        side = share * 16
        x, y = (int(max(0, centre * 32 - side / 2)) for centre in (right, down))
        picture = Image.new("L", (32, 32))
        ImageDraw.Draw(picture).rectangle((x, y, min(32, x + side), min(32, y + side)), 255)
        assert np.array_equal(hole.numpy(), np.asarray(picture) > 0)


@pytest.mark.parametrize(("kind", "same"), [("colour", "strong"), ("digits", "weak")])
def test_one_view_is_strong_for_colour_images_and_weak_for_others(kind, same):
    augmentation, views, images = world(kind)
    rendered = [
        views.render(images, draw_view(view, 40, augmentation, np.random.default_rng(0)))
        for view in ("strong-if-colour", same)
    ]
    assert torch.equal(*rendered)


def test_no_images_render_to_no_images():
    augmentation, views, images = world("colour")
    for view in VIEWS:
        draw = draw_view(view, 0, augmentation, np.random.default_rng(0))
        assert views.render(images[:0], draw).shape == (0, 3, 32, 32)


def test_an_unknown_view_and_too_small_images_are_refused():
    with pytest.raises(BadInput, match="did you mean 'strong'"):
        draw_view("stron", 1, COLOUR, np.random.default_rng(0))
    views = Views(COLOUR, [0.5] * 3, [0.25] * 3, "cpu")
    with pytest.raises(BadInput, match=r"28×28.*smaller than the crop of 32×32"):
        views.render(some_images(1, 3, 28), draw_view("plain", 1, COLOUR, np.random.default_rng(0)))
