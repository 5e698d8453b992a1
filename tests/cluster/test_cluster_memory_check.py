"""Nets that cannot fit into memory are refused with the sum, before anything is allocated."""

import numpy as np
import pytest

from dsinga.api import train
from dsinga.data import write_store
from dsinga.errors import UserError
from dsinga.job import loads

JOB = """
train_steps: 1 updater { type: kSGD learning_rate { type: kFixed base_lr: 0.01 } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { path: "PATH" batchsize: 4 } }
  layer { name: "ip" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: COUNT } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" }
}
"""


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (10**12, r"needs at least 96,857\.5 GiB of memory.*most is for the param 'ip_weight', 37,252\.9 GiB"),
        (2**63, "most is for the param 'ip_weight'"),
    ],
)
def test_a_net_that_is_larger_than_memory_is_refused_with_its_size(tmp_path, count, expected):
    write_store(str(tmp_path / "train.zarr"), [(np.ones((8, 10), np.float32), np.zeros(8, np.int64))])
    job = loads(JOB.replace("PATH", str(tmp_path / "train.zarr")).replace("COUNT", str(count)))
    with pytest.raises(UserError, match=expected):
        train(job, workers=1, progress=False)


def test_a_cluster_that_is_started_here_has_a_bounded_number_of_workers():
    job = loads(JOB.replace("COUNT", "3")).replace(cluster={"nworker_groups": 1000})
    with pytest.raises(UserError, match="the job wants 1,000 workers, but a cluster that is started here has at most"):
        train(job, progress=False)
