"""A short text that tells jobs apart whose iterations compute different things."""

from __future__ import annotations

import hashlib

from dsinga.job.enums import Phase
from dsinga.job.schema import ClusterConf, Job
from dsinga.job.updaterconf import LRGenConf
from dsinga.job.writer import lines, message_fields


def job_signature(job: Job) -> str:
    """Return a digest of a job's layers of training, algorithm, updater, exchange and precision.

    The layers count with their settings and sources, input layers with their batch size only. Stores, the learning
    rate, the numbers of steps and the topology do not count.
    """
    trained = [layer for layer in job.neuralnet.layer if layer.in_phase(Phase.kTrain)]
    layers = [layer.replace(store_conf=None) for layer in trained if layer.srclayers]
    batches = [sum(layer.store_conf.batchsize) for layer in trained if layer.store_conf]
    updater = job.updater.replace(learning_rate=LRGenConf())
    parts = (*layers, updater, job.train_one_batch)
    messages = [message for part in parts for message in lines(message_fields(part))]
    cluster = job.cluster or ClusterConf()
    exchange = [cluster.update.name, cluster.compression.name, cluster.slicing.name]
    text = "\n".join([*messages, str(batches), *exchange, job.precision.name])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
