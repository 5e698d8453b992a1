"""Names the params of layers, and finds the param that a layer shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dsinga.base.registry import nearest
from dsinga.job import JobError, NetConf, ParamConf
from dsinga.layers.interface.contract import copy_name
from dsinga.layers.interface.declarations import ParamSpec
from dsinga.layers.interface.layer import Layer
from dsinga.net.node import Param


class RequestedParam(NamedTuple):
    """A param that a layer needs, before it is known whether it is shared."""

    name: str
    layer: Layer
    spec: ParamSpec
    conf: ParamConf

    def error(self, message: str, field: str | None = None) -> JobError:
        """Return a JobError about this param, with its place in the job."""
        conf = self.conf if self.conf.where() else self.layer.conf
        text = f"param {self.name!r} of layer {self.layer.name!r}: {message}"
        return conf.error(text, field if conf is self.conf else "param")


def name_params(conf: NetConf, layers: Sequence[Layer]) -> tuple[list[tuple[str, ...]], dict[str, Param]]:
    """Name the params of all layers: return each layer's names, and the params by first use.

    The k-th ``param`` of a layer in the job belongs to its k-th param. ``share_from`` names the owner, which sets init
    and scales and may be outside this phase.
    """
    by_layer = [list_params(layer) for layer in layers]
    requests = [request for params_of_layer in by_layer for request in params_of_layer]
    named = index_params(requests)
    all_confs = [param for layer in conf.layer for param in layer.param if own_name(param)]
    elsewhere = {param.name: param for param in all_confs if param.name not in named}
    params: dict[str, Param] = {}
    for request in requests:
        owner = find_owner(request, named, elsewhere)
        if owner in named:
            check_shape(request, named[owner])
            params.setdefault(owner, Param(owner, named[owner].spec, named[owner].conf))
        else:
            params.setdefault(owner, Param(owner, request.spec, elsewhere[owner]))
    names = [tuple(find_owner(request, named, elsewhere) for request in of_layer) for of_layer in by_layer]
    return names, params


def list_params(layer: Layer) -> list[RequestedParam]:
    """Return the params that a layer needs; raise JobError if the job gives it too many."""
    job_confs = layer.conf.param
    if len(job_confs) > len(layer.params):
        roles = ", ".join(spec.role for spec in layer.params)
        has = f"{len(layer.params)} ({roles})" if roles else "no params"
        extra = job_confs[len(layer.params)]
        place = extra if extra.where() else layer.conf
        raise place.error(
            f"layer {layer.name!r} ({layer.conf.type_name}) has {has}, but the job gives it {len(job_confs)}"
        )
    confs = [*job_confs, *(ParamConf() for _ in range(len(layer.params) - len(job_confs)))]
    return [
        RequestedParam(own_name(conf), layer, spec, conf) if own_name(conf) else name_param(layer, spec, conf)
        for spec, conf in zip(layer.params, confs, strict=True)
    ]


def name_param(layer: Layer, spec: ParamSpec, conf: ParamConf) -> RequestedParam:
    """Give a param a name; a layer's copies share the first copy's params."""
    step, is_first = layer.conf.unroll_index, (layer.conf.copy_number or 1) == 1
    own = layer.name if step is None else layer.name.removeprefix(copy_name(step, ""))
    name = f"{own if is_first else own.partition('#')[2]}_{spec.role}"
    if not step and is_first:
        return RequestedParam(name, layer, spec, conf)
    copied = copy_name(step or 0, f"{own}_{spec.role}")
    return RequestedParam(copied, layer, spec, conf.replace(share_from=conf.share_from or name))


def own_name(conf: ParamConf) -> str:
    """Return the name that the job gives a param; "" if it only repeats ``share_from``."""
    return "" if conf.name == conf.share_from else conf.name


def index_params(requests: Sequence[RequestedParam]) -> dict[str, RequestedParam]:
    """Return params by name; raise JobError if two have the same name."""
    named: dict[str, RequestedParam] = {}
    for request in requests:
        if request.name in named:
            first = named[request.name].layer.name
            raise request.error(
                f"layer {first!r} has a param of this name; rename one, or write share_from: {request.name!r} without "
                "a name to use the same param in both",
                "name",
            )
        named[request.name] = request
    return named


def find_owner(request: RequestedParam, named: Mapping[str, RequestedParam], elsewhere: Mapping[str, ParamConf]) -> str:
    """Return the param that ``share_from`` leads to; raise JobError for an unknown name or a circle."""
    name, conf, path = request.name, request.conf, [request.name]
    while conf.share_from:
        name = conf.share_from
        if name in path:
            raise request.error(f"share_from goes in a circle: {' -> '.join([*path, name])}", "share_from")
        if name not in named and name not in elsewhere:
            hint = nearest(name, [*named, *elsewhere])
            raise request.error(f"share_from names {name!r}, but there is no such param{hint}", "share_from")
        path.append(name)
        conf = named[name].conf if name in named else elsewhere[name]
    return name


def check_shape(request: RequestedParam, owner: RequestedParam) -> None:
    """Raise JobError if a param cannot share another: their shapes differ, or only one is trained."""
    if request.spec.shape != owner.spec.shape:
        transposed = request.spec.shape == owner.spec.shape[::-1] and request.layer.conf.innerproduct_conf is not None
        remedy = "; set transpose in its innerproduct_conf to use the matrix transposed" if transposed else ""
        raise request.error(
            f"its shape is {request.spec.shape}, but {owner.name!r} of layer {owner.layer.name!r}, which it shares, "
            f"has {owner.spec.shape}{remedy}",
            "share_from",
        )
    if request.spec.trainable != owner.spec.trainable:
        trained, fixed = (request.name, owner.name) if request.spec.trainable else (owner.name, request.name)
        raise request.error(
            f"it cannot share {owner.name!r}: {trained!r} is trained and {fixed!r} is state of its layer", "share_from"
        )
    if request.conf.static and not owner.conf.static:
        raise request.error(f"it is static, but {owner.name!r}, which it shares, is trained; make both so", "static")
