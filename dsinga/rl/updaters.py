"""The default updaters of algorithms of reinforcement learning, with the settings of ``nn.Adam`` and ``nn.RMSprop``."""

from __future__ import annotations

from dsinga.job import AdamConf, ChangeMethod, LRGenConf, RMSPropConf, UpdaterConf, UpdaterType


def adam(learning_rate: float, epsilon: float = 1e-7) -> UpdaterConf:
    """Return what ``nn.Adam`` returns."""
    return UpdaterConf(
        type=UpdaterType.kAdam, adam_conf=AdamConf(bias_correction=True), learning_rate=_fixed(learning_rate),
        delta=epsilon,
    )  # fmt: skip


def rmsprop(learning_rate: float, rho: float, epsilon: float) -> UpdaterConf:
    """Return what ``nn.RMSprop`` returns."""
    return UpdaterConf(
        type=UpdaterType.kRMSProp, rmsprop_conf=RMSPropConf(rho=rho), learning_rate=_fixed(learning_rate), delta=epsilon
    )


def _fixed(rate: float) -> LRGenConf:
    return LRGenConf(type=ChangeMethod.kFixed, base_lr=rate)
