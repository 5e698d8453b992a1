"""Modules of PyTorch in which params meet params and constants before a layer takes them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    """A module of a function and of its parts by name: modules, params, and buffers, which are given in tuples."""

    def __init__(self, function: Callable[[Any, Any], Any], **parts: Any):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, nn.Module):
                setattr(self, name, part)
            elif isinstance(part, tuple):
                self.register_buffer(name, *part)
            else:
                self.register_parameter(name, nn.Parameter(part))

    def forward(self, x: Any) -> Any:
        return self.function(self, x)


def recurrent(layer: Any, **states: Any) -> Net:
    """Return the net of a recurrent layer that begins with states, each of them a param and a function of it."""

    def forward(m: Any, x: Any) -> Any:
        begin = [f(getattr(m, name)).expand(1, x.shape[0], 3).contiguous() for name, (_, f) in states.items()]
        return m.fc(m.r(x, begin[0] if len(begin) == 1 else tuple(begin))[0][:, -1])

    return Net(forward, r=layer, fc=nn.Linear(3, 2), **{name: param for name, (param, _) in states.items()})


def scores(m: Any, x: Any) -> Any:
    """Return attention whose scores have a table of biases by the distance of steps."""
    bias = m.t[m.i.reshape(-1)].reshape(5, 5)
    return F.softmax(m.q(x) @ m.k(x).transpose(1, 2) + bias, -1) @ x


R, PLAIN, STEPS, IMAGES, CODES = torch.randn, (4,), (5, 4), (3, 6, 6), ()
DISTANCE = (torch.arange(5)[:, None] - torch.arange(5) + 4,)
MASK, SEEN = (torch.tril(torch.ones(3, 4)),), (torch.tensor([True, False, True, False, False]),)
PARTS = nn.utils.parametrizations


def fc(outputs: int = 3) -> nn.Linear:
    """Return a fully connected layer of four numbers."""
    return nn.Linear(4, outputs)


# By name: the shape of a record, and the module.
MODULES: dict[str, tuple[tuple[int, ...], Callable[[], Net]]] = {
    "exp of a scalar": (PLAIN, lambda: Net(lambda m, x: m.fc(x) * m.s.exp(), fc=fc(), s=torch.tensor(0.3))),
    "exp of one number": (PLAIN, lambda: Net(lambda m, x: m.fc(x) * m.s.exp(), fc=fc(), s=R(1))),
    "a scalar": (PLAIN, lambda: Net(lambda m, x: m.fc(x) * m.s, fc=fc(), s=torch.tensor(0.0))),
    "a sum": (PLAIN, lambda: Net(lambda m, x: m.fc(x) + (m.p + m.q), fc=fc(), p=R(3), q=R(3))),
    "the greater of two": (PLAIN, lambda: Net(lambda m, x: m.fc(x) * torch.maximum(m.p, m.q), fc=fc(), p=R(3), q=R(3))),
    "weight norm": (PLAIN, lambda: Net(lambda m, x: m.fc(x), fc=PARTS.weight_norm(fc()))),
    "weight norm of a convolution": (IMAGES, lambda: Net(lambda m, x: m.c(x), c=PARTS.weight_norm(nn.Conv2d(3, 2, 3)))),
    "part of a table": (STEPS, lambda: Net(lambda m, x: m.fc(x + m.t[:, : x.shape[1]]), fc=fc(), t=R(1, 9, 4))),
    "a table by an index": (STEPS, lambda: Net(lambda m, x: m.fc(x + m.t[m.i]), fc=fc(), t=R(9, 4),
                                               i=(torch.tensor([3, 1, 4, 1, 5]),))),
    "distances": (STEPS, lambda: Net(scores, q=fc(4), k=fc(4), t=R(9), i=DISTANCE)),
    "a first state": (STEPS, lambda: recurrent(nn.GRU(4, 3, batch_first=True), h=(R(1, 1, 3), torch.tanh))),
    "first states of zeros": (STEPS, lambda: recurrent(nn.LSTM(4, 3, batch_first=True),
                                                       h=(torch.zeros(1, 1, 3), torch.clone), c=(R(1, 1, 3),
                                             torch.clone))),
    "a token": (STEPS, lambda: Net(lambda m, x: m.fc(torch.cat([(m.c + m.t[:, :1]).expand(x.shape[0], -1, -1),
                                                                x + m.t[:, 1:]], 1)).mean(1), fc=fc(), c=R(1, 1, 4),
                                             t=R(1, 6, 4))),
    "a token, repeated": (STEPS, lambda: Net(lambda m, x: m.fc(torch.cat([m.c.repeat(x.shape[0], 1, 1), x], 1)).mean(1),
                                             fc=fc(), c=R(1, 1, 4))),
    "a token in place of steps": (STEPS, lambda: Net(lambda m, x: m.fc(torch.where(m.i[None, :, None], m.t, x)).mean(1),
                                                     fc=fc(), t=R(4), i=SEEN)),
    "params in a row": (PLAIN, lambda: Net(lambda m, x: m.fc(x) + torch.cat([m.p, m.q]), fc=fc(), p=R(1), q=R(2))),
    "a mean of branches": (PLAIN, lambda: Net(
        lambda m, x: (F.softmax(m.w, 0)[:, None] * torch.stack([m.a(x), m.b(x)], 1)).sum(1), a=fc(), b=fc(), w=R(2))),
    "a gate": (PLAIN, lambda: Net(lambda m, x: m.a(x) * m.g.sigmoid() + m.b(x) * (1 - m.g.sigmoid()), a=fc(), b=fc(),
                                  g=torch.tensor(0.2))),
    "a weight of no module": (PLAIN, lambda: Net(lambda m, x: torch.tanh(x @ m.w) @ m.w.T, w=R(4, 3))),
    "a param and its transpose": ((4, 4), lambda: Net(lambda m, x: m.fc((x * m.p + m.p.T).flatten(1)),
                                                     p=torch.eye(4) + 0.1, fc=nn.Linear(16, 2))),
    "a masked weight": (PLAIN, lambda: Net(lambda m, x: F.linear(x, m.w * m.k, m.b), w=R(3, 4), b=R(3), k=MASK)),
    "one plus a scale": (PLAIN, lambda: Net(lambda m, x: F.layer_norm(m.fc(x), (3,), 1 + m.g, m.b), fc=fc(), g=R(3),
                                             b=R(3))),
    "a product of weights": (PLAIN, lambda: Net(lambda m, x: F.linear(x, m.w + m.b @ m.a), w=R(3, 4), b=R(3, 2),
                                             a=R(2, 4))),
    "a standardised weight": (PLAIN, lambda: Net(
        lambda m, x: F.linear(x, (m.w - m.w.mean(1, keepdim=True)) / (m.w.norm(dim=1, keepdim=True) + 1e-3)), w=R(3,
                                             4))),
    "a standardised kernel": (IMAGES, lambda: Net(lambda m, x: F.conv2d(x, m.w - m.w.mean((1, 2, 3), keepdim=True)),
                                                  w=R(2, 3, 3, 3))),
    "cosines": (PLAIN, lambda: Net(lambda m, x: F.normalize(m.fc(x)) @ F.normalize(m.c).T * m.s.exp(), fc=fc(),
                                             c=R(6, 3),
                                   s=torch.tensor(0.5))),
    "an exponent": (IMAGES, lambda: Net(lambda m, x: m.fc(x.clamp(min=1e-2).pow(m.p).mean((2, 3)).pow(1 / m.p)),
                                        fc=nn.Linear(3, 2), p=torch.ones(1) * 3)),
    "Einstein's convention": (STEPS, lambda: Net(lambda m, x: torch.einsum("bti,hio->bhto", x, m.w).flatten(1),
                                             w=R(2, 4, 3))),
    "rising bounds": (PLAIN, lambda: Net(lambda m, x: m.fc(x) - torch.cumsum(F.softplus(m.t), 0), fc=fc(), t=R(3))),
    "a factor of codes": (CODES, lambda: Net(lambda m, x: F.embedding(x, m.t * m.s).mean(1), t=R(7, 4),
                                             s=torch.tensor(0.4))),
    "halves of a param": (PLAIN, lambda: Net(lambda m, x: m.fc(x) * m.p.chunk(2)[0] + m.p.chunk(2)[1], fc=fc(),
                                             p=R(6))),
    "parts of a weight that overlap": (PLAIN, lambda: Net(lambda m, x: m.fc(x)[:, :2] + F.linear(x, m.fc.weight[1:]),
                                             fc=fc())),
    "a bias that is added again": (PLAIN, lambda: Net(lambda m, x: m.fc(x).tanh() + m.fc.bias * 2, fc=fc())),
    "a first layer that is shared": (PLAIN, lambda: Net(lambda m, x: m.fc(x) + torch.addmm(m.b, x, m.w, beta=0.5,
                                             alpha=2),
                                                        fc=fc(), b=R(3), w=R(4, 3))),
}  # fmt: skip
# Modules whose weights no layer can compute, so that a file of them is refused.
REFUSED = {"weight norm of a convolution", "a standardised kernel", "parts of a weight that overlap"}


def made(name: str) -> tuple[Net, Callable[[int, int], Any]]:
    """Return a module, and the function that gives a number of records by a seed."""
    shape, make = MODULES[name]
    torch.manual_seed(1)

    def records(count: int, seed: int = 0) -> Any:
        generator = torch.Generator().manual_seed(seed)
        if shape == CODES:
            return torch.randint(7, (count, 5), generator=generator)
        return torch.randn((count, *shape), generator=generator)

    return make().eval(), records
