"""Random nets for fields, cut by space: convolutions, pooling, normalisation, paths that are joined, at any sizes."""

from typing import Any

import numpy as np

from dsinga.base.registry import lookup
from dsinga.job import LayerConf, NetConf, Phase
from dsinga.layers import RecordInfo
from dsinga.layers.interface.layer import Shape
from dsinga.net import NeuralNet, create_net

GRIDS = [(2, [2]), (2, [3]), (2, [4]), (3, [2]), (3, [3]), (2, [2, 2]), (2, [1, 3]), (2, [3, 1])]


def random_net(seed: int) -> tuple[NeuralNet, int]:
    """Return a net of a few random layers for fields, cut by space, and the number of workers that it is cut for."""
    rng = np.random.default_rng(seed)
    dim, grid = GRIDS[seed % len(GRIDS)]
    rows = int(rng.integers(1, 5))
    shape = (int(rng.integers(1, 4)), *(int(size) for size in rng.integers(9, 15, 2)))
    layers: list[LayerConf] = [LayerConf(name="data", type="kRecordInput", store_conf={"path": "x"})]
    shapes: dict[str, Shape] = {"data": (rows, *shape)}
    for number in range(int(rng.integers(4, 9))):
        sources = list(shapes)
        source = sources[max(int(rng.integers(len(sources))), len(sources) - 2)]
        conf = random_layer(rng, f"layer{number}", source, shapes)
        try:
            shapes[conf.name] = lookup("layer", conf.type_name)(conf, [shapes[name] for name in conf.srclayers]).shape
        except Exception:  # such as a kernel larger than the field
            continue
        layers.append(conf)
    last = layers[-1].name
    layers += [
        LayerConf(name="dense", type="kInnerProduct", srclayers=[last], innerproduct_conf={"num_output": 4}),
        LayerConf(name="loss", type="kSoftmaxLoss", srclayers=["dense", "data"]),
    ]
    net = NetConf(layer=layers, partition_dim=dim, partition_grid=grid)
    return create_net(net, Phase.kTrain, {"data": RecordInfo(shape, rows)}), int(np.prod(grid))


def random_layer(rng: np.random.Generator, name: str, source: str, shapes: dict[str, Shape]) -> LayerConf:
    """Return a random layer that takes the feature of ``source``, perhaps another one of its size beside it."""

    def pick(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    channels = shapes[source][1]
    window = {name: pick(1, 2, 3) for name in ("stride_x", "stride_y")}
    kernel = {"kernel_x": pick(1, 2, 3, 5), "kernel_y": pick(1, 2, 3, 5)}
    pads = pick({"same": True}, {"pad_x": pick(0, 1), "pad_y": pick(0, 1)}, {"pad": 0})
    border = {"before": [pick(0, 1, 2), pick(0, 1)], "after": [pick(0, 1), pick(0, 2)]}
    kinds: dict[str, dict[str, Any]] = {
        "kConvolution": {"convolution_conf": {"num_filters": pick(2, 3), **kernel, **window, **pads}},
        "kPooling": {
            "pooling_conf": {"pool": pick("MAX", "AVG"), "count_include_pad": pick(True, False)}
            | pick({**kernel, **window, **pads, **pick({}, {"dilation": 2})}, {"output_size": [pick(4, 5, 7), 6]})
        },
        "kTransposedConvolution": {"transposedconvolution_conf": {"num_filters": 2, **kernel, **window, **pads}},
        "kPadding": {
            "padding_conf": {**border, "mode": [pick("kZero", "kEdge", "kReflect", "kPeriodic") for _ in range(2)]}
        },
        "kCropping": {"cropping_conf": border},
        "kUpsampling": {"upsampling_conf": {"factor": [pick(1, 2, 3), 2], "method": pick("kNearest", "kLinear")}},
        "kResize": {
            "resize_conf": {
                **pick({"size": [pick(5, 7, 9), 8]}, {"scale": [0.7, pick(1.2, 1.9)]}),
                "method": pick("kNearest", "kLinear", "kCubic"),
                "coordinates": pick("kHalfPixel", "kAsymmetric", "kAlignCorners"),
                "antialias": pick(True, False),
            }
        },
        "kBM": {},
        "kGroupNorm": {"groupnorm_conf": {"groups": channels}},
        "kReLU": {},
        "kSigmoid": {},
        "kPReLU": {},
        "kLRN": {"lrn_conf": {"local_size": 3, "alpha": 0.05}},
        "kDropout": {"dropout_conf": {"dropout_ratio": 0.3, "unit": pick("kNumber", "kChannel", "kRow")}},
    }
    alike = [other for other, shape in shapes.items() if other != source and shape[2:] == shapes[source][2:]]
    if alike and rng.random() < 0.4:
        return LayerConf(name=name, type="kConcate", srclayers=[source, pick(*alike)], concate_conf={"concate_dim": 1})
    equal = [other for other in alike if shapes[other] == shapes[source]]
    if equal and rng.random() < 0.4:
        return LayerConf(name=name, type=pick("kAdd", "kMultiply"), srclayers=[source, pick(*equal)])
    kind = pick(*kinds, "kConvolution", "kConvolution", "kPooling")
    return LayerConf(name=name, type=kind, srclayers=[source], **kinds[kind])
