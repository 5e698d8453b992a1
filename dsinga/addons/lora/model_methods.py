"""Methods of models: add_lora, save_lora, load_lora and merge_lora; and the merged net, for export."""

from __future__ import annotations

import fnmatch
import glob
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from dsinga.addons.lora.layer_params import fitting, layers_by_name, with_layers, with_params
from dsinga.addons.lora.low_rank_layers import (
    BASE,
    SCALED,
    A,
    B,
    LowRank,
    low_rank_layers,
    low_rank_shapes,
    merged_params,
    weight_names,
    with_low_rank,
    without_low_rank,
)
from dsinga.base.arguments import check_range, check_whole
from dsinga.base.arrays import ParamArrays
from dsinga.base.durable_files import explained_writing, local_folder
from dsinga.base.errors import UserError
from dsinga.base.registry import listed, nearest_or_listed, register
from dsinga.checkpoint import Checkpoint, export_safetensors
from dsinga.checkpoint.tensor_files import read_safetensors
from dsinga.job import Job, LayerConf
from dsinga.layers.interface.layer import Layer
from dsinga.net import NeuralNet
from dsinga.nn.model.from_job import JobModel
from dsinga.nn.model.predictable import Predictable
from dsinga.nn.model.trainable import Trainable
from dsinga.nn.words.keras_arguments import checked
from dsinga.nn.writing.net_conf import layer_names, layers_with_losses
from dsinga.nn.writing.symbol import flatten
from dsinga.nn.writing.writer import with_kept_statistics
from dsinga.reading.checked_job import CheckedJob

_log = logging.getLogger(__name__)

MOST_RANK = 4096
METADATA = "lora"  # of the file: the rank and alpha of each layer, as JSON
ANOTHER = "merge_lora() makes it part of the weights; then add another"


@register("method", "add_lora")
@checked
def add_lora(
    model: Trainable,
    rank: int = 8,
    alpha: float | None = None,
    layers: str | Sequence[str] = "*attention*",
    trainable: str | Sequence[str] = (),
) -> None:
    """Train low-rank changes of weights, W + alpha/rank·B·A, instead of the model's params, which are frozen.

    Hu et al., LoRA: Low-Rank Adaptation of Large Language Models (2021). :meth:`save_lora` writes A and B, and
    :meth:`merge_lora` adds their product to the weights. The optimizer starts from an empty state.

    B starts with zeros, so outputs stay what they were. A is uniform in ±1/√inputs; for embeddings A starts with zeros
    and B is N(0, 1). In a convolution A has the windows, and B is of single points, as in PEFT. A layer "edges" becomes
    four layers of the job, "edges.base", "edges.lora_a", "edges.lora_scaled" and "edges.lora_b", and a sum called
    "edges".

    Args:
        model: the model.
        rank: the columns of B, and rows of A.
        alpha: the factor of the change is alpha/rank; by default it is 1.
        layers: names or patterns of the job's dense layers, embeddings and convolutions without groups. Patterns skip
            other layers.
        trainable: names or patterns of layers to train as a whole, such as a new head.

    Raises:
        UserError: no such layer, another type of layer, or one with low-rank layers.
    """
    check_whole("rank", rank, 1)
    if rank > MOST_RANK:
        raise UserError(f"rank is {rank}; give at most {MOST_RANK}, as a change of low rank has few columns")
    if alpha is not None:
        check_range("alpha", alpha, 1e-6, 1e6)
    model.refuse_while_training("add_lora")
    names = _chosen(_layers(model), _patterns("layers", layers))
    pair = rank, float(rank if alpha is None else alpha)
    _add(model, dict.fromkeys(names, pair), _patterns("trainable", trainable))


@register("method", "save_lora")
@checked
def save_lora(model: Trainable, path: str | os.PathLike[str]) -> None:
    """Write the params of LoRA to a safetensors file, for :meth:`load_lora` of another copy of the model.

    The file also has other params that are not frozen: a new head's, and statistics of batch normalisations. Raises
    UserError for a model without LoRA, and if the file cannot be written.
    """
    layers, params, file = _layers(model), model.ordered_params(), local_folder(path)
    described = {name: {"rank": each.rank, "alpha": each.alpha} for name, each in _required(model, layers).items()}
    static = model.predicting_net().static
    arrays = {name: array for name, array in params.items() if name not in static}
    arrays |= {name: params[name] for name in low_rank_shapes(layers, params)}
    if file.is_dir():
        raise UserError(f"{file} is a folder; name a file, as in {file / 'lora.safetensors'}")
    with explained_writing(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        export_safetensors(Checkpoint(0, arrays, {}, {}), file, {METADATA: json.dumps(described)})


@register("method", "load_lora")
@checked
def load_lora(model: Trainable, path: str | os.PathLike[str]) -> None:
    """Add the low-rank layers of a file of :meth:`save_lora`, with their params, like :meth:`add_lora`.

    Layers with their own params in the file stay trainable, as with ``trainable=`` of :meth:`add_lora`. Raises
    UserError if the file is damaged, or belongs to another net.
    """
    model.refuse_while_training("load_lora")
    file = local_folder(path)
    arrays, described = read_safetensors(file), _metadata(file)
    layers, params = _layers(model), model.ordered_params()
    known = weight_names(without_low_rank(layers))
    if missing := [name for name in described if name not in known]:
        hint = nearest_or_listed(missing[0], known, "its layers with weights are")
        raise UserError(f"{path} has LoRA for the layer {missing[0]!r}, which the model lacks{hint}")
    present = {name: (each.rank, each.alpha) for name, each in low_rank_layers(layers).items()}
    if present and present != described:
        raise UserError(f"the model has other LoRA than {path}, for {listed(present)}; {ANOTHER}")
    added = {name: LowRank(*pair) for name, pair in described.items()}
    shapes = low_rank_shapes(with_low_rank(without_low_rank(layers), added), params)
    others = {name: array.shape for name, array in params.items() if name in arrays and name not in shapes}
    if unknown := sorted(arrays.keys() - shapes.keys() - others.keys()):
        hint = nearest_or_listed(unknown[0], params, "the model has")
        raise UserError(f"{path} has {unknown[0]!r}, which the model lacks{hint}; give the file of a copy of this net")
    for name, shape in (shapes | others).items():
        if name not in arrays or arrays[name].shape != shape:
            has = f"has the shape {arrays[name].shape}" if name in arrays else "is missing"
            raise UserError(f"{path}: {name!r} {has}, but the model needs {shape}; give the file of a copy of this net")
    if not present:
        nodes = model.predicting_net().nodes
        _add(model, described, [glob.escape(node.layer.name) for node in nodes if others.keys() & {*node.params}])
    model.params = {**model.ordered_params(), **arrays}


@register("method", "merge_lora")
def merge_lora(model: Trainable) -> None:
    """Add alpha/rank·B·A to the weights, and remove the low-rank layers; frozen params stay frozen.

    Raises UserError for a model without LoRA.
    """
    model.refuse_while_training("merge_lora")
    layers = _layers(model)
    _required(model, layers)
    _set_low_rank(model, {}, merged_params(layers, model.ordered_params()))


def merged_net(model: Predictable) -> tuple[NeuralNet, Mapping[str, np.ndarray]]:
    """Return a model's net for predictions and its params, with any LoRA merged."""
    local = model.shaped_net()
    if not low_rank_layers(local.job.neuralnet.layer):
        return model.predicting_net(), model.params
    job, params = merged_lora(local.job, model.ordered_params())
    return local.of_job(job).unlabelled_net(model.output_layers()), params


@dataclass(frozen=True, eq=False)
class LowRankChange:
    """A change of a model's job that adds low-rank layers to the layers in ``added``."""

    added: Mapping[str, LowRank]

    def __call__(self, checked: CheckedJob) -> Job:
        """Add the low-rank layers to a job."""
        return with_layers(checked.job, with_low_rank(checked.job.neuralnet.layer, self.added))


def merged_lora(job: Job, params: Mapping[str, np.ndarray]) -> tuple[Job, ParamArrays]:
    """Merge the low-rank layers of a job into its weights; return the job and its params."""
    layers = job.neuralnet.layer
    return with_layers(job, without_low_rank(layers)), merged_params(layers, params)


def _patterns(argument: str, given: Any) -> list[str]:
    patterns = [given] if isinstance(given, str) else given
    is_named = isinstance(patterns, (list, tuple)) and all(isinstance(pattern, str) for pattern in patterns)
    if not is_named or (argument == "layers" and not patterns):
        raise UserError(f'{argument} takes names of layers or patterns, as in {argument}="*_query", not {given!r}')
    return list(patterns)


def _chosen(layers: Sequence[LayerConf], patterns: Sequence[str]) -> list[str]:
    added, weights = low_rank_layers(layers), weight_names(layers)
    inner = {f"{name}{suffix}" for name in added for suffix in (BASE, A, SCALED, B)}
    types = {layer.name: layer.type_name for layer in layers if layer.name not in inner}
    turned = {layer.name for layer in layers if layer.innerproduct_conf and layer.innerproduct_conf.transpose}
    sharing: dict[str, list[str]] = {}
    for name in (name for name in types if name in weights):
        sharing.setdefault(weights[name], []).append(name)
    alike = [names for names in sharing.values() if len({(types[name], name in turned) for name in names}) == 1]
    dense = {name: names for names in alike for name in names}
    tied = {name: names for names in sharing.values() if names not in alike for name in names}
    chosen: dict[str, None] = {}
    for pattern in patterns:
        found = fitting(pattern, types if pattern in types else [*added, *dense], _fault)
        if again := next((name for name in found if name in added), None):
            raise _fault(f"the layer {again!r} has LoRA of rank {added[again].rank} already; {ANOTHER}")
        if pattern in tied:
            raise _fault(
                f"{' and '.join(map(repr, tied[pattern]))} share a weight, but not its form; name other layers"
            )
        if found[0] not in dense:
            own = "no dense layer, embedding or convolution without groups"
            raise _fault(f"{pattern!r} is a {types[pattern]}, {own}, with a weight of its own")
        if left_out := fnmatch.filter(tied, pattern):
            _log.warning("add_lora leaves out %s, which share a weight, but not its form", ", ".join(left_out))
        chosen |= dict.fromkeys(other for name in found for other in dense[name])
    if taken := next(
        (f"{name}{end}" for name in chosen for end in (BASE, A, SCALED, B) if f"{name}{end}" in types), ""
    ):
        raise _fault(f"the model has a layer called {taken!r}, as one of LoRA would be; give it another name")
    return list(chosen)


def _fault(sentence: str) -> UserError:
    return UserError(f"add_lora: {sentence}")


def _required(model: Trainable, layers: Sequence[LayerConf]) -> dict[str, LowRank]:
    if not (added := low_rank_layers(layers)):
        raise UserError(f"{model!r} has no LoRA; call add_lora or load_lora first")
    return added


def _metadata(path: Path) -> dict[str, tuple[int, float]]:
    try:
        with safetensors.safe_open(path, "numpy", backend="pread") as file:
            described = json.loads(file.metadata()[METADATA])
        pairs = {str(name): (each["rank"], float(each["alpha"])) for name, each in described.items()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        pairs = {}
    if not pairs or not all(type(rank) is int and rank > 0 and 0 < alpha < np.inf for rank, alpha in pairs.values()):
        raise UserError(f"{path} does not say the rank and alpha of LoRA; give a file that model.save_lora wrote")
    return pairs


def _layers(model: Trainable) -> list[LayerConf]:
    return model.shaped_net().job.neuralnet.layer


def _add(model: Trainable, added: Mapping[str, tuple[int, float]], trainable: Sequence[str]) -> None:
    local = model.shaped_net()
    try:
        net = local.net
    except UserError:  # a job does not say the shape of labels that are fields
        net = local.unlabelled_net(model.output_layers())
    built = layers_by_name(net)
    layers = {layer.name: layer for layer in local.job.neuralnet.layer}
    low_rank = low_rank_layers([*layers.values()])
    for name, (rank, alpha) in added.items():
        layer = layers[name]
        is_unrolled = layer.unroll_len is not None or local.job.neuralnet.unroll_len > 1
        codes_by_step = layer.embedding_conf is not None and not is_unrolled and len(built[name].shape) == 3
        low_rank[name] = LowRank(rank, alpha, layer.per_step or codes_by_step)
    params = model.known_params(local)
    if isinstance(model, JobModel):
        _freeze_job(model, built, trainable, low_rank)
    else:
        _freeze(model, trainable)
    _set_low_rank(model, low_rank, params)


def _freeze(model: Any, trainable: Sequence[str]) -> None:
    outputs = flatten([model.output])
    names = layer_names([*flatten([model.input]), *outputs])
    builders = layers_with_losses(outputs, model.objective)
    named = [(builder, names.get(id(builder)) or builder.name or builder.kind) for builder in builders]
    trained = {found for pattern in trainable for found in fitting(pattern, [name for _, name in named], _fault)}
    for builder, name in named:
        builder.trainable = name in trained


def _freeze_job(
    model: JobModel, built: Mapping[str, Layer], trainable: Sequence[str], low_rank: Mapping[str, LowRank]
) -> None:
    """Freeze the params of a model's job, except in ``trainable`` and low-rank layers."""
    layers = model.base.neuralnet.layer
    trained = {found for pattern in trainable for found in fitting(pattern, [*built], _fault)}
    trained |= {f"{name}{suffix}" for name in low_rank for suffix in (A, SCALED, B)}
    frozen = [
        with_kept_statistics(with_params(layer, built[layer.name], lambda name, conf: conf.replace(static=True)))
        if layer.name in built and layer.name not in trained
        else layer
        for layer in layers
    ]
    model.base = with_layers(model.base, frozen)


def _set_low_rank(model: Any, low_rank: Mapping[str, LowRank], params: ParamArrays) -> None:
    if isinstance(model, JobModel):
        model.base = with_layers(model.base, with_low_rank(without_low_rank(model.base.neuralnet.layer), low_rank))
    else:
        kept = [change for change in model.job_changes if not isinstance(change, LowRankChange)]
        model.job_changes = [*kept, LowRankChange({**low_rank})] if low_rank else kept
    model.params = params
    model.known_params(model.shaped_net())  # creates the params of new layers
