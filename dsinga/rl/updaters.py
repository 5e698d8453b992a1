"""The default updaters of algorithms of reinforcement learning, with the settings of ``nn.Adam`` and ``nn.RMSprop``."""

from __future__ import annotations

from typing import Any

from dsinga.job import ChangeMethod, LRGenConf, UpdaterConf, UpdaterType


def adam(learning_rate: float, epsilon: float = 1e-7) -> UpdaterConf:
    """Return what ``nn.Adam`` returns."""
    return _updater(UpdaterType.kAdam, learning_rate, epsilon, adam_conf={"bias_correction": True})


def rmsprop(learning_rate: float, rho: float, epsilon: float) -> UpdaterConf:
    """Return what ``nn.RMSprop`` returns."""
    return _updater(UpdaterType.kRMSProp, learning_rate, epsilon, rmsprop_conf={"rho": rho})


def _updater(type_: UpdaterType, rate: float, epsilon: float, **settings: Any) -> UpdaterConf:
    learning_rate = LRGenConf(type=ChangeMethod.kFixed, base_lr=rate)
    return UpdaterConf(type=type_, learning_rate=learning_rate, delta=epsilon, **settings)
