"""Which param each layer uses: names made for those that have none, share_from followed to the owner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dsinga.job import JobError, NetConf, ParamConf
from dsinga.layers.base import Layer, ParamSpec
from dsinga.layers.steps import copy_name
from dsinga.net.param import Param
from dsinga.registry import nearest


class Wish(NamedTuple):
    """A param that a layer wants, under the name that it has before sharing."""

    name: str
    layer: Layer
    spec: ParamSpec
    conf: ParamConf

    def error(self, message: str, field: str | None = None) -> JobError:
        """Return the JobError that says ``message`` of this param, at its place or else at its layer's."""
        conf = self.conf if self.conf.where() else self.layer.conf
        text = f"param {self.name!r} of layer {self.layer.name!r}: {message}"
        return conf.error(text, field if conf is self.conf else "param")


def name_params(conf: NetConf, layers: Sequence[Layer]) -> tuple[list[tuple[str, ...]], dict[str, Param]]:
    """Return, for each layer, the names of the params that it uses, and the params themselves by first use.

    The k-th ``param`` of a layer in the job belongs to its k-th param; one without a name is ``<layer>_<role>``. A
    param with ``share_from`` is the param of that name, whose init and scales hold. The owner may be in a layer that
    this phase leaves out: the name is known all the same.
    """
    wishes = [list_wishes(layer) for layer in layers]
    named = index_wishes([wish for own in wishes for wish in own])
    others = [param for layer in conf.layer for param in layer.param if own_name(param)]
    elsewhere = {param.name: param for param in others if param.name not in named}
    params: dict[str, Param] = {}
    for wish in (wish for own in wishes for wish in own):
        owner = find_owner(wish, named, elsewhere)
        if owner in named:
            check_shape(wish, named[owner])
            params.setdefault(owner, Param(owner, named[owner].spec, named[owner].conf))
        else:
            params.setdefault(owner, Param(owner, wish.spec, elsewhere[owner]))
    return [tuple(find_owner(wish, named, elsewhere) for wish in own) for own in wishes], params


def list_wishes(layer: Layer) -> list[Wish]:
    """Return the params of one layer; raise JobError where the job gives it more than it has."""
    given = layer.conf.param
    if len(given) > len(layer.params):
        roles = ", ".join(spec.role for spec in layer.params)
        has = f"{len(layer.params)} ({roles})" if roles else "no params"
        extra = given[len(layer.params)]
        place = extra if extra.where() else layer.conf
        raise place.error(f"layer {layer.name!r} ({layer.conf.type_name}) has {has}, but the job gives it {len(given)}")
    confs = [*given, *(ParamConf() for _ in range(len(layer.params) - len(given)))]
    return [
        Wish(own_name(conf), layer, spec, conf) if own_name(conf) else name_wish(layer, spec, conf)
        for spec, conf in zip(layer.params, confs, strict=True)
    ]


def name_wish(layer: Layer, spec: ParamSpec, conf: ParamConf) -> Wish:
    """Return a param that the job does not name; that of a copy of an unrolled layer is shared with its copy 0."""
    step = layer.conf.unroll_index
    if step is None:
        return Wish(f"{layer.name}_{spec.role}", layer, spec, conf)
    name = f"{layer.name.removeprefix(copy_name(step, ''))}_{spec.role}"
    if step == 0:
        return Wish(name, layer, spec, conf)
    return Wish(copy_name(step, name), layer, spec, conf.replace(share_from=conf.share_from or name))


def own_name(conf: ParamConf) -> str:
    """Return the name of this param itself: none if the job only repeats the name that it shares."""
    return "" if conf.name == conf.share_from else conf.name


def index_wishes(wishes: Sequence[Wish]) -> dict[str, Wish]:
    """Return the params by name; raise JobError where two have the same."""
    named: dict[str, Wish] = {}
    for wish in wishes:
        if wish.name in named:
            other = named[wish.name].layer.name
            raise wish.error(
                f"layer {other!r} has a param of this name; rename one, or write share_from: {wish.name!r} without a "
                "name to use the same param in both",
                "name",
            )
        named[wish.name] = wish
    return named


def find_owner(wish: Wish, named: Mapping[str, Wish], elsewhere: Mapping[str, ParamConf]) -> str:
    """Follow share_from to the param that shares from none; raise JobError where it leads nowhere or back."""
    name, conf, path = wish.name, wish.conf, [wish.name]
    while conf.share_from:
        name = conf.share_from
        if name in path:
            raise wish.error(f"share_from goes in a circle: {' -> '.join([*path, name])}", "share_from")
        if name not in named and name not in elsewhere:
            hint = nearest(name, [*named, *elsewhere])
            raise wish.error(f"share_from names {name!r}, but there is no such param{hint}", "share_from")
        path.append(name)
        conf = named[name].conf if name in named else elsewhere[name]
    return name


def check_shape(wish: Wish, owner: Wish) -> None:
    """Raise JobError where a param cannot be its owner: another shape, or state here and not there."""
    if wish.spec.shape != owner.spec.shape:
        turned = wish.spec.shape == owner.spec.shape[::-1] and wish.layer.conf.innerproduct_conf is not None
        remedy = "; set transpose in its innerproduct_conf to use the matrix turned" if turned else ""
        raise wish.error(
            f"its shape is {wish.spec.shape}, but {owner.name!r} of layer {owner.layer.name!r}, which it shares, "
            f"has {owner.spec.shape}{remedy}",
            "share_from",
        )
    if wish.spec.trainable != owner.spec.trainable:
        raise wish.error(f"one of it and {owner.name!r} is trained and the other is not", "share_from")
