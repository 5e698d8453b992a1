"""Opens the stores of a job and builds its nets."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dsinga.base.registry import listed
from dsinga.job import AlgType, Job, Phase, training_phases
from dsinga.net import NeuralNet, create_net
from dsinga.passes.predictor import EvaluationPass
from dsinga.reading.batch_reader import BatchReader, count_batches, readers_of_all_records, tests_all_records
from dsinga.reading.checked_job import CheckedJob, check_same_names, check_same_params
from dsinga.training.bp import no_loss

_log = logging.getLogger(__name__)


class OpenedJob(NamedTuple):
    """A job that is ready to train: the batch reader and the net of each phase."""

    readers: Mapping[Phase, BatchReader]
    nets: Mapping[Phase, NeuralNet]
    complete: Mapping[Phase, Sequence[EvaluationPass]] = {}

    def passes(self, phase: Phase, batches: int) -> Sequence[EvaluationPass]:
        """Return the passes that evaluate a phase: over its first ``batches`` batches, or all records for 0."""
        return [EvaluationPass(self.nets[phase], self.readers[phase], batches)] if batches else self.complete[phase]


def open_job(checked: CheckedJob, workers: int = 1, groups: int = 1) -> OpenedJob:
    """Open a job's stores and build its nets, for ``groups`` worker groups of ``workers`` workers."""
    job = checked.job
    readers = {  # a single group validates and tests
        phase: checked.reader(phase, workers, groups if phase is Phase.kTrain else 1) for phase in training_phases(job)
    }
    complete = {
        phase: _passes_over_all_records(job, phase, reader)
        for phase, reader in readers.items()
        if tests_all_records(job, phase)
    }
    readers |= {phase: passes[0].reader for phase, passes in complete.items()}
    nets = {
        phase: complete[phase][0].net if phase in complete else create_net(job.neuralnet, phase, reader.infos)
        for phase, reader in readers.items()
    }
    check_same_params(nets)
    check_same_names(readers)
    alg = job.train_one_batch.alg
    if alg in (AlgType.kBP, AlgType.kBPTT) and not nets[Phase.kTrain].losses:
        raise job.neuralnet.error(no_loss("kTrain", alg.name))
    if job.passes > 1:
        _announce_batch_statistics(nets[Phase.kTrain], job.passes)
    return OpenedJob(readers, nets, complete)


def _passes_over_all_records(job: Job, phase: Phase, reader: BatchReader) -> list[EvaluationPass]:
    readers = readers_of_all_records(reader)
    nets = [create_net(job.neuralnet, phase, part.infos) for part in readers]
    return [EvaluationPass(*each) for each in zip(nets, readers, count_batches(readers), strict=True)]


def _announce_batch_statistics(net: NeuralNet, micro_batches: int) -> None:
    layers = (node.layer for node in net.nodes)
    names = [layer.name for layer in layers if not getattr(layer, "use_global_stats", True)]
    if names:
        _log.warning(
            "batch normalisation (%s) takes its statistics of each of the %d micro_batches, not of the whole batch",
            listed(names), micro_batches,
        )  # fmt: skip
