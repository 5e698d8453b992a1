"""Images of cells that touch, with their label images, for tests; `notebooks/microscopes.ipynb` draws the same."""

import numpy as np


def synthetic_cells(seed, size=128, count=40):
    """Return an image (size, size) uint16 and its label image, int32."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:size, :size]
    labels, light = np.zeros((size, size), np.int32), np.zeros((size, size))
    for _ in range(count):
        centre, (long, short), angle = (
            random.uniform(0, size, 2),
            random.uniform((11, 8), (16, 11)),
            random.uniform(0, 3.14),
        )
        u = (y - centre[0]) * np.cos(angle) + (x - centre[1]) * np.sin(angle)
        v = (x - centre[1]) * np.cos(angle) - (y - centre[0]) * np.sin(angle)
        far = (u / long) ** 2 + (v / short) ** 2
        if labels[far < 0.6].any():
            continue
        new = (far < 1) & (labels == 0)
        labels[new] = labels.max() + 1
        light[new] = random.uniform(0.5, 1) * (1 - 0.35 * far[new])
    for axis in (0, 1):
        light = sum(np.roll(light, s, axis) * w for s, w in zip(range(-2, 3), (1, 4, 6, 4, 1), strict=True)) / 16
    image = 200 + 800 * light + 150 * x / size + 40 * random.normal(size=light.shape)
    return image.clip(0).astype(np.uint16), labels
