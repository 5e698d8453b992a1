"""A layer of a user's that changes nothing, and a place for such a layer in the small job."""

from typing import Any

from dsinga.job import Job, LayerConf
from dsinga.layers import Connection, Cut, Layer, Output


class Identity(Layer):
    """A layer whose feature is that of its source."""

    cut = Cut(Connection.kOneToOne)

    def __init__(self, conf: Any, source_shapes: Any, info: Any = None):
        super().__init__(conf, source_shapes, info)
        self.shape = self.source_shapes[0]

    def compute_feature(self, params: Any, sources: Any, ctx: Any) -> Output:
        return Output(sources[0])

    def compute_gradient(self, params: Any, sources: Any, output: Any, grad: Any, needs: Any, ctx: Any) -> Any:
        return (grad,), ()


def with_user_layer(job: Job, user_type: str) -> Job:
    """Return the small job with a user's layer ``own`` after its pooling, for two steps."""
    job.neuralnet.layer.insert(6, LayerConf(name="own", user_type=user_type, srclayers="pool"))
    job.neuralnet.layer[7].srclayers = ["own"]
    return job.replace(train_steps=2)
