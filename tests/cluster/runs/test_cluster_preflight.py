"""Before training, preflight checks find user code that worker processes cannot load."""

import threading

import pytest
from distributed import Client

from dsinga import UserError, predict, train
from dsinga.base.registry import register
from tests.support.refusals import refused
from tests.support.user_layers import Identity, with_user_layer

MODULE = """
from dsinga import register
from dsinga.layers import Layer, Output

@register("layer", "Uploaded")
class Uploaded(Layer):
    source_count = 1

    def __init__(self, conf, source_shapes, info=None):
        super().__init__(conf, source_shapes, info)
        self.shape = self.source_shapes[0]

    def compute_feature(self, params, sources, ctx):
        return Output(sources[0])

    def compute_gradient(self, params, sources, output, grad, needs, ctx):
        return (grad,), ()
"""


@pytest.mark.process
def test_a_module_that_workers_lack_is_refused_until_it_is_uploaded(job, processes: Client, tmp_path, monkeypatch):
    file = tmp_path / "uploaded_layers.py"
    file.write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    __import__(file.stem)
    job = with_user_layer(job, "Uploaded")
    error = "cannot load layer 'own': ModuleNotFoundError: No module named 'uploaded_layers'; .* client.upload_file"
    refused(lambda: train(job, processes, progress=False), error)
    processes.upload_file(str(file))
    params = train(job, processes, progress=False).params
    assert len(predict(job, params, "own", client=processes)) == 150


def test_a_layer_that_cannot_be_sent_is_refused(job, threads: Client):
    @register("layer", "Locked")
    class Locked(Identity):
        def __init__(self, conf, source_shapes, info=None):
            super().__init__(conf, source_shapes, info)
            self.lock = threading.Lock()

    with pytest.raises(UserError, match=r"layer 'own' cannot be sent to Dask workers \(.*lock.*\); open files and"):
        train(with_user_layer(job, "Locked"), threads, progress=False)
