"""Decides at which steps sites average their params, and takes the steps of the outer optimizer.

The gradient of an outer step is the mean of all sites' outer gradients (outer params less a site's params), as in
DiLoCo (Douillard et al. 2023, arXiv 2311.08105). Settings give local SGD (Stich 2019), post-local SGD (Lin et al.
2020), BMUF (Chen and Huo 2016), SlowMo (Wang et al. 2020) and EASGD (Zhang et al. 2015).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from dsinga.addons.sites.mean_conf import MeanConf
from dsinga.cluster.server.collectives import add_up
from dsinga.cluster.server.served_slice import OUTER, OUTER_PARAMS, ServedSlice, SliceSpec
from dsinga.job.updaterconf import EMAConf
from dsinga.training import create_updater
from dsinga.training.schedules import decay_at


class AveragingRule:
    """Averages the slices of ``groups`` server groups every ``period`` steps.

    ``average`` defines a moving average (EMA) of the outer params, updated at each outer step. Version v of a slice is
    its value after v steps.
    """

    def __init__(self, conf: MeanConf, period: int, groups: int, average: EMAConf | None = None):
        self.conf, self.groups, self._average = conf, groups, average
        self.period = period
        self._optimizer = create_updater(conf.updater)
        weights = conf.weight or [1.0] * groups
        self.shares = [weight / sum(weights) for weight in weights]

    def is_due(self, id: int, version: int) -> bool:
        """Whether slice ``id`` is averaged at this version."""
        return self.rounds(id, version) > self.rounds(id, version - 1)

    def rounds(self, id: int, version: int) -> int:
        """Count the outer steps of slice ``id`` up to ``version``."""
        every = self.conf.every_step_until
        offset = id % self.conf.fragments * self.period // self.conf.fragments
        later = version - every - offset
        periods = later // self.period + (offset > 0) if later >= 0 else 0
        return max(0, min(version, every)) + periods

    def applied_at(self, id: int, version: int) -> int | None:
        """Return the version with the outer gradients that slice ``id`` applies at ``version``; None without any.

        It is ``delay`` steps earlier, except while groups average after every step.
        """
        sent = version if version <= self.conf.every_step_until else version - self.conf.delay
        early = sent <= self.conf.every_step_until < version  # was applied at once
        return sent if sent > 0 and not early and self.is_due(id, sent) else None

    def in_flight_at(self, id: int, version: int) -> int | None:
        """Return the version with the outer gradients of slice ``id`` in flight at ``version``; None without any."""
        later = (self.applied_at(id, version + steps) for steps in range(1, self.conf.delay + 1))
        return next((sent for sent in later if sent is not None and sent <= version), None)

    def age(self, id: int, version: int) -> int:
        """Return how many steps before ``version`` the outer gradients were sent that slice ``id`` applied last."""
        every = self.conf.every_step_until
        later = version - self.conf.delay - every - id % self.conf.fragments * self.period // self.conf.fragments
        return self.conf.delay + later % self.period if later >= 0 else version - min(version, every)

    def age_factor(self, age: int) -> float:
        """Weight an outer gradient that is ``age`` outer steps late: 1 / √(1 + age), 0 beyond ``max_age``.

        The root is from FedBuff (Nguyen et al. 2022, arXiv 2106.06639).
        """
        return 1 / math.sqrt(1 + age) if age <= self.conf.max_age else 0.0

    def mean(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Average all groups' arrays with their weights, float32 (size,), added in the order of the groups."""
        if not self.conf.weight:
            return add_up(arrays) / np.float32(len(arrays))
        return add_up([array * np.float32(share) for array, share in zip(arrays, self.shares, strict=True)])

    def outer_params(self, served_slice: ServedSlice) -> np.ndarray:
        """Return a slice's outer params; the first call copies its value and starts the outer optimizer."""
        spec, outer = served_slice.spec, served_slice.outer
        if OUTER_PARAMS not in outer:
            outer[OUTER_PARAMS] = served_slice.value.copy()
            if spec.trainable:
                state = self._optimizer.of(spec.whole_param, spec.shape).initial_state(served_slice.value)
                outer |= {f"{OUTER}{name}": array for name, array in state.items()}
        return outer[OUTER_PARAMS]

    def update(
        self,
        spec: SliceSpec,
        round: int,
        gradient: np.ndarray,
        state: Mapping[str, np.ndarray],
        average: np.ndarray | None = None,
    ) -> None:
        """Take an outer step (``round``, from 0): update a slice's outer params, state and ``average`` in place."""
        optimizer = self._optimizer.of(spec.whole_param, spec.shape)
        slots = {name.removeprefix(OUTER): array for name, array in state.items()}
        optimizer.update(round, state[OUTER_PARAMS], gradient, slots, 1.0, spec.wd_scale, spec.shape)
        decay = decay_at(self._average, round)
        if average is not None and decay is not None:
            average *= np.float32(decay)
            average += state[OUTER_PARAMS] * np.float32(1.0 - decay)

    def mix(self, value: np.ndarray, outer: np.ndarray) -> None:
        """Set a group's params to ``mixing`` times themselves plus (1 - ``mixing``) times the outer params."""
        if self.conf.mixing:
            value -= outer
            value *= np.float32(self.conf.mixing)
            value += outer
        else:
            np.copyto(value, outer)
