"""The four layers of SINGA's examples/rnnlm in Python: its job.conf runs with --import datasets/rnnlm/rnnlm.py.

A record is a window of text: a word and up to ten words that follow it, up to the end of the sentence. As in SINGA each
word is four numbers: its code, its class, the first code of its class and that of the next class. Windows are padded
with -1.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np

import dsinga
from dsinga.data import Batch, StoreContents
from dsinga.job import Settings, StoreConf, required, setting
from dsinga.job.limits import Count
from dsinga.layers import Layer, Output, ParamSpec
from dsinga.models.rnnlm import frequency_classes

CODE, CLASS, START, STOP = range(4)


@dsinga.register("importer", "rnnlm")
def rnnlm(source, classes=100, window=10):
    """Read a folder with the texts train and valid, a sentence per line; words that train lacks are left out."""
    lines = {name: (Path(source) / name).read_text(encoding="utf-8").splitlines() for name in ("train", "valid")}
    texts = {name: [[*line.split(), "</s>"] for line in text] for name, text in lines.items()}
    counts = Counter(word for sentence in texts["train"] for word in sentence)
    vocabulary = ["</s>", *(word for word, _ in counts.most_common() if word != "</s>")]
    starts = np.array(frequency_classes([counts[word] for word in vocabulary], classes))
    numbers = np.arange(len(vocabulary))
    groups = np.searchsorted(starts, numbers, "right") - 1
    table = np.stack([numbers, groups, starts[groups], np.append(starts, len(vocabulary))[groups + 1]], axis=1)
    codes = {word: code for code, word in enumerate(vocabulary)}
    return {
        f"{name}_data.zarr": StoreContents(windows(table, text, codes, window), vocabulary=tuple(vocabulary))
        for name, text in texts.items()
    }


def windows(table, text, codes, window):
    """Yield windows (n, window + 1, 4); each begins with the last word of the window before."""
    words = [codes[word] for sentence in text for word in sentence if word in codes]
    records, at = [], 0
    while at < len(words) - 1:
        following = words[at + 1 : at + 1 + window]
        size = following.index(0) + 1 if 0 in following else len(following)
        record = np.full((window + 1, 4), -1, np.int32)
        record[: size + 1] = table[words[at : at + 1 + size]]
        records.append(record)
        at += size
    yield Batch(np.stack(records), None)


@dsinga.register("layer", "kData")
class Data(Layer):
    """The input layer: windows (B, T + 1, 4) from the store that [data_conf] names."""

    class Conf(Settings):
        path: str = required("the store of windows")
        backend: str = setting("kvfile", "the format of SINGA's file; the store is zarr")
        max_window: Count = setting(10, "the most words of a window, which importing has decided")

    source_count, is_input = 0, True

    @classmethod
    def reads(cls, conf):
        """Return the store that SINGA's [data_conf] names, with one window per batch."""
        return StoreConf(path=conf.settings_of(cls.Conf).path, batchsize=[1])

    def __init__(self, conf, source_shapes, info=None):
        super().__init__(conf, source_shapes, info)
        self.shape = (info.batchsize, *info.shape)

    def compute_feature(self, params, sources, ctx):
        return Output(ctx.ops.asarray(sources[0].data))


@dsinga.register("layer", "kEmbedding")
class Embedding(Layer):
    """The vectors (B, T, n) of all words but the last of a window. SINGA keeps only the last gradient of each word."""

    class Conf(Settings):
        word_dim: Count = required("the numbers of a word's vector")
        vocab_size: Count = required("the number of words")

    source_count = 1

    def __init__(self, conf, source_shapes, info=None):
        super().__init__(conf, source_shapes, info)
        batch, words, _ = source_shapes[0]
        self.params = (ParamSpec("weight", (self.settings.vocab_size, self.settings.word_dim)),)
        self.shape = (batch, words - 1, self.settings.word_dim)

    def compute_feature(self, params, sources, ctx):
        words = np.where(sources[0][:, 1:, CODE] >= 0, sources[0][:, :-1, CODE], -1)
        return Output(ctx.ops.embedding(params[0], words), saved=words)

    def compute_gradient(self, params, sources, output, grad, needs, ctx):
        rows, values = ctx.ops.embedding_grad(output.saved, grad)
        dweight = np.zeros_like(params[0])
        dweight[rows] = values
        return (None,), (dweight,)


@dsinga.register("layer", "kHidden")
class Hidden(Layer):
    """h[t] = sigmoid(h[t-1]·W + x[t]), (B, T, n)."""

    source_count = 1

    def __init__(self, conf, source_shapes, info=None):
        super().__init__(conf, source_shapes, info)
        self.shape = self.source_shapes[0]
        self.params = (ParamSpec("weight", (self.shape[2], self.shape[2])),)

    def compute_feature(self, params, sources, ctx):
        h, before = np.empty_like(sources[0]), np.zeros_like(sources[0][:, 0]) @ params[0]
        for t in range(self.shape[1]):
            h[:, t] = ctx.ops.sigmoid(before + sources[0][:, t])
            before = h[:, t] @ params[0]
        return Output(h)

    def compute_gradient(self, params, sources, output, grad, needs, ctx):
        h, dx = output.feature, np.array(grad)
        for t in reversed(range(self.shape[1])):
            if t + 1 < self.shape[1]:
                dx[:, t] += dx[:, t + 1] @ params[0].T
            dx[:, t] = ctx.ops.sigmoid_grad(h[:, t], dx[:, t])
        return (dx if needs[0] else None,), (np.einsum("bti,btj->ij", h[:, :-1], dx[:, 1:]),)


@dsinga.register("layer", "kLoss")
class Loss(Layer):
    """-log P(class of the next word)·P(word in its class), summed over a window; the metric is the mean over words."""

    class Conf(Settings):
        nclass: Count = required("the number of classes of words")
        vocab_size: Count = required("the number of words")

    source_count, is_loss = 2, True

    def __init__(self, conf, source_shapes, info=None):
        super().__init__(conf, source_shapes, info)
        inputs = source_shapes[0][2]
        self.shape = self.source_shapes[0][:2]
        shapes = {"word": self.settings.vocab_size, "class": self.settings.nclass}
        self.params = tuple(ParamSpec(role, (rows, inputs)) for role, rows in shapes.items())

    def compute_feature(self, params, sources, ctx):
        probabilities, saved = np.zeros(self.shape, np.float32)[: len(sources[0])], []
        for at in zip(*np.nonzero(sources[1][:, 1:, CODE] >= 0), strict=True):
            h, (code, group, start, stop) = sources[0][at][None], sources[1][:, 1:][at].tolist()
            by_class = ctx.ops.softmax(h @ params[1].T)
            by_word = ctx.ops.softmax(h @ params[0][start:stop].T)
            probabilities[at] = by_class[0, group] * by_word[0, code - start]
            saved.append((at, by_class[0], by_word[0], group, code, start, stop))
        loss = -sum(math.log(max(float(probabilities[at]), 1e-38)) for at, *_ in saved)
        return Output(probabilities, saved=saved, metrics={"loss": (loss, len(saved))})

    def compute_gradient(self, params, sources, output, grad, needs, ctx):
        dh, dword, dclass = (np.zeros_like(array) for array in (sources[0], *params))
        for at, by_class, by_word, group, code, start, stop in output.saved:
            by_class, by_word = by_class / ctx.rows.total, by_word / ctx.rows.total
            by_class[group] -= 1 / ctx.rows.total
            by_word[code - start] -= 1 / ctx.rows.total
            dclass += np.outer(by_class, sources[0][at])
            dword[start:stop] += np.outer(by_word, sources[0][at])
            dh[at] = by_class @ params[1] + by_word @ params[0][start:stop]
        return (dh, None), (dword, dclass)
