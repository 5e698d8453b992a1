"""Defines the interface of kernels for devices such as GPUs, which an add-on registers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

from dsinga.job import Job
from dsinga.net import NeuralNet
from dsinga.ops import Ops
from dsinga.ops.types import Ask, Devices, Groups


class DeviceBackend(ABC):
    """The interface of a registered backend with kernels for devices; it is never instantiated."""

    @staticmethod
    @abstractmethod
    def create() -> Ops:
        """Open the kernels. Raises UserError if a device or driver is missing."""

    @staticmethod
    @abstractmethod
    def choose_devices(
        job: Job, groups: Groups, bytes_needed: Callable[[int], int], describe: Callable[[int, int, str], str],
        ask: Ask, host: Callable[[str], str], is_required: bool,
    ) -> Devices:  # fmt: skip
        """Choose the device of each worker, None for CPU cores.

        With ``is_required`` all workers get one, or this raises UserError.
        """

    @staticmethod
    @abstractmethod
    def describe_capture(job: Job, net: NeuralNet) -> str:
        """Say whether training steps on devices can be recorded, or why not."""


class DeviceMemory(Protocol):
    """The type of the hook ``device_memory``, which predicts how much device memory training needs."""

    def __call__(self, net: NeuralNet, slots: int, micro_batches: int) -> int:
        """Return the device bytes to train a net with an updater of ``slots`` state arrays."""
