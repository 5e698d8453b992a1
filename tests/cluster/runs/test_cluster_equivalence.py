"""However a net is cut, in threads or processes and in either grain, it trains to the params of one worker: to 1e-5.

All settings give the same bits, which differ from those of one worker by the rounding of float32. For nets of every
type of layer in float64, without a cluster, see tests/cutting/test_cutting_training.py.
"""

from pathlib import Path

import pytest
from distributed import Client

from dsinga.api import train
from dsinga.net import NeuralNet
from tests.support.partition_nets import net_of
from tests.support.partitioned_jobs import STEEP, gradients, job_of
from tests.support.partitioned_run import RATE, Values, assert_close
from tests.support.small_job import assert_same

pytestmark = pytest.mark.process

TOLERANCE = 1e-5


@pytest.mark.parametrize(
    ("name", "strategy", "workers", "client", "grain"),
    [
        ("zoo", "rows", 3, "processes", "round"),
        pytest.param("convnet", "features", 2, "threads", "graph", marks=pytest.mark.ci),
        ("convnet", "none", 2, "threads", "graph"),  # a worker without layers
        ("mdnn", "locations", 2, "processes", "round"),  # the paths apart
        ("convnet", "hybrid", 2, "processes", "graph"),
        ("sequences", "mixed", 3, "processes", "round"),
        pytest.param("convnet", "stripes", 2, "threads", "graph", marks=pytest.mark.ci),
    ],
    indirect=["client"],
)
def test_a_cut_net_trains_as_a_whole_one(
    threads: Client, client: Client, tmp_path: Path, name: str, strategy: str, workers: int, grain: str
) -> None:
    def params(net: NeuralNet, workers: int, steps: int = 6, rate: float = RATE) -> Values:
        return train(job_of(net, tmp_path, workers, steps, rate), threads, progress=False).params

    whole, cut = net_of(name), net_of(name, strategy, workers)
    steps = [gradients(net, params(net, count, 1, STEEP)) for net, count in ((whole, 0), (cut, workers))]
    assert_close(steps[1], steps[0], TOLERANCE, "gradient")
    trained = params(cut, workers)
    assert_close(trained, params(whole, 0), TOLERANCE, "param")
    other = train(job_of(cut, tmp_path, workers, 6), client, grain=grain, progress=False)
    assert_same(other.params, trained)
