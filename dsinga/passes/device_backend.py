"""The interface of a kernel backend for devices such as GPUs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

from dsinga.job import Job
from dsinga.net import NeuralNet
from dsinga.ops import Ops
from dsinga.ops.types import Ask, Devices, Groups


class DeviceBackend(ABC):
    """A registered backend with kernels on devices; it is never instantiated."""

    @staticmethod
    @abstractmethod
    def create() -> Ops:
        """Return the kernels. Raises UserError if a device or driver is missing."""

    @staticmethod
    @abstractmethod
    def choose_devices(
        job: Job, groups: Groups, bytes_needed: Callable[[int], int], describe: Callable[[int, int, str], str],
        ask: Ask, host: Callable[[str], str], is_required: bool,
    ) -> Devices:  # fmt: skip
        """Return the device of each worker of ``groups``, None for CPU cores.

        With ``is_required`` all workers get one, or this raises UserError. Other arguments:
        :func:`dsinga.passes.processors.choose_devices`.
        """

    @staticmethod
    @abstractmethod
    def describe_capture(job: Job, net: NeuralNet) -> str:
        """Return how iterations on devices are captured, or why not, if known."""


class DeviceMemory(Protocol):
    """The type of the hook ``device_memory``, which predicts a worker's memory."""

    def __call__(self, net: NeuralNet, slots: int, micro_batches: int) -> int:
        """Return the device bytes to train a net with ``slots`` updater arrays."""
