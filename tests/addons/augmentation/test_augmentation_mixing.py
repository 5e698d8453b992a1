"""Mixup and CutMix. Oracles: the formulas of torchvision's v2.MixUp and v2.CutMix, and torch's soft cross-entropy."""

import math

import numpy as np
import pytest

from dsinga.addons.augmentation.crops import symmetric_beta
from dsinga.base.errors import UserError
from tests.support.augmentations import draws, images, make_list, make_one


def test_mixup_adds_the_rolled_batch_with_its_labels():
    torch = pytest.importorskip("torch")
    x, labels = images(8), np.arange(8)
    chain, mixup = make_list(x, {"type": "kMixup", "alpha": 0.4}), make_one(x, type="kMixup", alpha=0.4)
    rolled = np.r_[7, np.arange(8)]  # the part of the worker that has the whole batch: the last record is read again
    numbers, epochs = rolled + 100, np.zeros(9, int)
    mixed, soft = chain.augment(x[rolled], labels[rolled], numbers, epochs)
    from dsinga.addons.augmentation.augmentation import stream_key, uniform

    share = symmetric_beta(uniform(stream_key(0, 0), numbers[1:], epochs[1:], mixup.draws)[:, 0], 0.4)
    lam = torch.tensor(share, dtype=torch.float32)
    batch, hot = torch.tensor(x), torch.nn.functional.one_hot(torch.tensor(labels), 10).float()
    by_image = lam[:, None, None, None]
    expected = batch.roll(1, 0) * (1 - by_image) + batch * by_image  # torchvision's MixUp._transform, λ by record
    np.testing.assert_allclose(mixed, expected.numpy(), atol=1e-4)
    np.testing.assert_allclose(soft, (hot.roll(1, 0) * (1 - lam[:, None]) + hot * lam[:, None]).numpy(), atol=1e-6)
    assert mixed.dtype == soft.dtype == np.float32


def test_cutmix_pastes_torchvisions_box():
    x = images(50, 16, 20)
    cutmix = make_one(x, type="kCutMix")
    uniform = draws(cutmix, 49)
    mixed, shares = cutmix.mix(x[1:].copy(), x[:-1], uniform)
    for row in range(49):
        lam = uniform[row, 0]  # Beta(1, 1) is uniform
        r_x, r_y, r = int(uniform[row, 1] * 20), int(uniform[row, 2] * 16), 0.5 * math.sqrt(1 - lam)
        x1, x2 = max(r_x - int(r * 20), 0), min(r_x + int(r * 20), 20)
        y1, y2 = max(r_y - int(r * 16), 0), min(r_y + int(r * 16), 16)
        expected = x[row + 1].copy()
        expected[:, y1:y2, x1:x2] = x[row][:, y1:y2, x1:x2]
        np.testing.assert_array_equal(mixed[row], expected)
        assert shares[row] == pytest.approx(1 - (x2 - x1) * (y2 - y1) / 320)


@pytest.mark.parametrize("kind", ["kMixup", "kCutMix"])
def test_a_probability_leaves_other_records_alone(kind):
    x = images(400)
    mixing = make_one(x, type=kind, probability=0.3, alpha=1.0)
    mixed, shares = mixing.mix(x[1:].copy(), x[:-1], draws(mixing, 399))
    alone = shares == 1
    assert 0.6 < alone.mean() < 0.8
    np.testing.assert_array_equal(mixed[alone], x[1:][alone])


def test_targets_that_are_numbers_are_mixed_as_numbers():
    from dsinga.addons.augmentation import create_augmentations
    from dsinga.job import StoreConf
    from dsinga.layers import RecordInfo

    x, y = images(4), np.array([[1.0, 2], [3, 5], [0, 0], [8, 8]], np.float32)
    labels = RecordInfo((3, 16, 20), 4, label_shape=(2,), label_dtype=np.float32)
    conf = StoreConf(augment=[{"type": "kMixup", "alpha": 1.0}])
    chain = create_augmentations("data", conf, (3, 16, 20), np.uint8, seed=0, training=True, labels=labels)
    mixed, soft = chain.augment(x.copy(), y, np.arange(4), np.zeros(4, int))
    share = ((mixed - x[:-1]) / (x[1:].astype(np.float32) - x[:-1] + 1e-9)).reshape(3, -1)
    share = np.median(share, axis=1)[:, None]
    np.testing.assert_allclose(soft, share * y[1:] + (1 - share) * y[:-1], atol=1e-3)


def test_labels_of_other_classes_are_refused():
    with pytest.raises(UserError, match="kMixup has classes: 5, but there is a label 9; give 10 or more"):
        make_list(images(), {"type": "kMixup", "classes": 5})
    chain = make_list(images(), {"type": "kMixup"})
    with pytest.raises(UserError, match="kMixup gets the label 12, which is none of 10 classes"):
        chain.augment(images(3), np.array([1, 12, 2]), np.arange(3), np.zeros(3, int))
