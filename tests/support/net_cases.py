"""Short ways to say a net, and the net it becomes."""

from dsinga.job import LayerConf, NetConf, Phase, loads
from dsinga.layers import RecordInfo
from dsinga.net import NeuralNet, create_net
from tests.support.training_cases import layer

IMAGES = RecordInfo((3, 8, 8), 4)
FLAT = RecordInfo((6,), 4)


def net_of(text: str, phase: Phase = Phase.kTrain, **records: RecordInfo) -> NeuralNet:
    """Build the net of the text inside ``neuralnet { }``; the text's first line is line 2 of ``job.conf``."""
    job = loads(f"neuralnet {{\n{text}\n}}", "job.conf")
    return create_net(job.neuralnet, phase, records or {"data": IMAGES})


def names(net: NeuralNet) -> list[str]:
    return [node.layer.name for node in net.nodes]


def sources(net: NeuralNet, name: str) -> list[str]:
    return [net.nodes[source].layer.name for source in net.nodes[net.position(name)].sources]


def dense(name: str, source: str, outputs: int = 3, **more: object) -> LayerConf:
    return layer(name, "kInnerProduct", source, innerproduct_conf={"num_output": outputs}, **more)


def build(*layers: LayerConf, phase: Phase = Phase.kTrain, **records: RecordInfo) -> NeuralNet:
    return create_net(NetConf(layer=list(layers)), phase, records or {"data": FLAT})
