"""kCosineLog: a learning rate in cycles, each twice as long as the last."""

from __future__ import annotations

import math

from dsinga.base.registry import register
from dsinga.job.component import Settings, required, setting
from dsinga.job.limits import Count
from dsinga.training.schedules import Schedule


@register("schedule", kCosineLog=13)
class CosineLog(Schedule):
    """Learning rate base·(1 - cos(2π·log₂(1 + (2^cycles - 1)·step / change_freq))) / 2; 0 after change_freq steps.

    Holzmüller et al., Better by Default: Strong Pre-Tuned MLPs (2024): their coslog4 has four cycles.
    """

    class Conf(Settings):
        """Settings of kCosineLog."""

        change_freq: Count = required("the number of steps of all cycles")
        cycles: Count = setting(4, "the number of cycles")

    settings: Conf

    def __call__(self, step: int) -> float:
        share = min(step / self.settings.change_freq, 1.0)
        place = math.log2(1 + (2**self.settings.cycles - 1) * share)
        return self.base * (1 - math.cos(2 * math.pi * place)) / 2
