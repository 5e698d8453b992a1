"""A short text that tells jobs apart whose iterations compute different things."""

from __future__ import annotations

import hashlib

from dsinga.job.enums import Phase
from dsinga.job.schema import Job
from dsinga.job.updaterconf import LRGenConf
from dsinga.job.writer import lines, message_fields


def job_signature(job: Job) -> str:
    """Return a digest of a job's layers of training, updater and precision, without stores, learning rate and steps.

    The layers count with their settings and sources, input layers with their batch size only.
    """
    trained = [layer for layer in job.neuralnet.layer if layer.in_phase(Phase.kTrain)]
    layers = [layer.replace(store_conf=None) for layer in trained if layer.srclayers]
    batches = [sum(layer.store_conf.batchsize) for layer in trained if layer.store_conf]
    updater = job.updater.replace(learning_rate=LRGenConf())
    messages = [message for part in (*layers, updater) for message in lines(message_fields(part))]
    text = "\n".join([*messages, str(batches), job.precision.name])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
