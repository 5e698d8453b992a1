"""Nets of a few plain layers, and AlexNet."""

import math
from typing import Any

from dsinga.job import LayerConf, NetConf, Phase
from dsinga.layers import RecordInfo
from dsinga.net import NeuralNet, create_net


def layer(name: str, type: Any, *sources: str, **fields: Any) -> LayerConf:
    return LayerConf(name=name, type=type, srclayers=list(sources), **fields)


def conv(name: str, source: str, filters: int, kernel: int, **conf: object) -> LayerConf:
    return layer(name, "kConvolution", source, convolution_conf={"num_filters": filters, "kernel": kernel, **conf})


def pool(name: str, source: str) -> LayerConf:
    return layer(name, "kPooling", source, pooling_conf={"pool": "MAX", "kernel": 3, "stride": 2})


def dense(name: str, source: str, outputs: int, **more: object) -> LayerConf:
    return layer(name, "kInnerProduct", source, innerproduct_conf={"num_output": outputs}, **more)


def net_of(*layers: LayerConf, batch: int, shape: tuple[int, ...]) -> NeuralNet:
    data = layer("data", "kRecordInput")
    return create_net(NetConf(layer=[data, *layers]), Phase.kTrain, {"data": RecordInfo(shape, batch)})


def alexnet(batch: int = 128) -> NeuralNet:
    """Return the net of Krizhevsky, Sutskever and Hinton (2012) in one column: 61 million params."""
    return net_of(
        conv("conv1", "data", 96, 11, stride=4),
        layer("relu1", "kReLU", "conv1"),
        pool("pool1", "relu1"),
        layer("norm1", "kLRN", "pool1"),
        conv("conv2", "norm1", 256, 5, pad=2),
        layer("relu2", "kReLU", "conv2"),
        pool("pool2", "relu2"),
        layer("norm2", "kLRN", "pool2"),
        conv("conv3", "norm2", 384, 3, pad=1),
        layer("relu3", "kReLU", "conv3"),
        conv("conv4", "relu3", 384, 3, pad=1),
        layer("relu4", "kReLU", "conv4"),
        conv("conv5", "relu4", 256, 3, pad=1),
        layer("relu5", "kReLU", "conv5"),
        pool("pool5", "relu5"),
        dense("fc6", "pool5", 4096),
        layer("relu6", "kReLU", "fc6"),
        layer("drop6", "kDropout", "relu6"),
        dense("fc7", "drop6", 4096),
        layer("relu7", "kReLU", "fc7"),
        layer("drop7", "kDropout", "relu7"),
        dense("fc8", "drop7", 1000),
        layer("loss", "kSoftmaxLoss", "fc8", "data"),
        batch=batch,
        shape=(3, 227, 227),
    )


def small_convnet(batch: int = 24) -> NeuralNet:
    """Return a net with images, normalisation over channels and over the batch, a fork, and fully connected layers."""
    return net_of(
        conv("conv1", "data", 8, 3, pad=1),
        layer("norm1", "kLRN", "conv1"),
        layer("bn", "kBM", "norm1"),
        conv("conv2", "bn", 8, 3, pad=1),
        layer("relu2", "kReLU", "conv2"),
        dense("fc1", "relu2", 24),
        dense("fc2", "relu2", 24),
        layer("both", "kConcate", "fc1", "fc2", concate_conf={"concate_dim": 1}),
        layer("drop", "kDropout", "both"),
        dense("fc3", "drop", 12),
        layer("loss", "kSoftmaxLoss", "fc3", "data"),
        batch=batch,
        shape=(3, 8, 8),
    )


def mlp(batch: int, *widths: int, inputs: int = 784) -> NeuralNet:
    layers, last = [], "data"
    for k, width in enumerate(widths[:-1]):
        layers += [dense(f"fc{k}", last, width), layer(f"tanh{k}", "kSTanh", f"fc{k}")]
        last = f"tanh{k}"
    out = dense("out", last, widths[-1])
    return net_of(*layers, out, layer("loss", "kSoftmaxLoss", "out", "data"), batch=batch, shape=(inputs,))


def size_of_params(net: NeuralNet) -> int:
    return sum(math.prod(param.shape) for param in net.params.values())
