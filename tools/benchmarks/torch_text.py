"""The nets of sentences and ratings in PyTorch: those of dsinga.models.texts and dsinga.models.recommender."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import rnn


class Convolution(nn.Module):
    """Kim's net, over the steps up to the end of the longest sentence of the batch."""

    def __init__(self, words: int, width: int = 300, filters: int = 100, kernels: tuple[int, ...] = (3, 4, 5)):
        super().__init__()
        self.embedding = nn.Embedding(words, width, sparse=True)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.convolutions = nn.ModuleList(nn.Conv1d(width, filters, kernel) for kernel in kernels)
        self.scores = nn.Linear(filters * len(kernels), 2)

    def forward(self, codes: Tensor) -> Tensor:
        """Return the scores (B, 2) of codes (B, T), -1 after the end."""
        codes = codes[:, : max(5, int((codes >= 0).sum(1).max()))]
        x = self.embedding(codes.clamp(min=0)) * (codes >= 0)[:, :, None]
        x = functional.dropout(x, 0.5, self.training).transpose(1, 2)
        pooled = [functional.relu(convolution(x)).amax(2) for convolution in self.convolutions]
        return self.scores(functional.dropout(torch.cat(pooled, 1), 0.5, self.training))


class StackedLSTM(nn.Module):
    """Two bidirectional LSTMs over packed sentences, and the maximum over the steps before the end."""

    def __init__(self, words: int, width: int = 128, hidden: int = 64):
        super().__init__()
        self.embedding = nn.Embedding(words, width, sparse=True)
        nn.init.normal_(self.embedding.weight, std=0.1)
        self.lstm = nn.LSTM(width, hidden, 2, batch_first=True, bidirectional=True, dropout=0.5)
        self.scores = nn.Linear(2 * hidden, 2)

    def forward(self, codes: Tensor) -> Tensor:
        """Return the scores (B, 2) of codes (B, T), -1 after the end."""
        lengths = (codes >= 0).sum(1)
        codes = codes[:, : int(lengths.max())]
        x = functional.dropout(self.embedding(codes.clamp(min=0)), 0.5, self.training)
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        h, _ = rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        pooled = h.masked_fill((codes < 0)[:, :, None], -torch.inf).amax(1)
        return self.scores(functional.dropout(pooled, 0.5, self.training))


class Recommender(nn.Module):
    """The recommender with cosine similarity or the product."""

    def __init__(self, users: int, films: int, words: int, product: bool = False, width: int = 32):
        super().__init__()
        tables = ((users, width), (films, width), (words, width), (users, 1), (films, 1))
        self.tables = nn.ModuleList(nn.Embedding(*sizes, sparse=True) for sizes in tables)
        self.title, self.user = nn.Conv1d(width, width, 3, padding=1), nn.Linear(width, width)
        self.film, self.score = nn.Linear(2 * width + 19, width), nn.Linear(width if product else 1, 1)
        self.product = product
        for table in self.tables:
            nn.init.normal_(table.weight, std=0.1 if table.embedding_dim > 1 else 0.0)
        nn.init.constant_(self.score.bias, 3.5)
        if not product:
            nn.init.ones_(self.score.weight)

    def forward(self, users: Tensor, films: Tensor, titles: Tensor, genres: Tensor) -> Tensor:
        """Return the ratings (B,)."""
        of_users, of_films, of_words, user_mean, film_mean = self.tables
        words = of_words(titles.clamp(min=0)) * (titles >= 0)[:, :, None]
        convolved = functional.relu(self.title(words.transpose(1, 2))).masked_fill((titles < 0)[:, None], 0)
        described = torch.cat([of_films(films), convolved.amax(2), genres], 1)
        user = self.user(functional.dropout(of_users(users), 0.3, self.training))
        film = self.film(functional.dropout(described, 0.3, self.training))
        if self.product:
            similarity = user * film
        else:
            similarity = 5 * functional.cosine_similarity(user, film)[:, None]
        return (self.score(similarity) + user_mean(users) + film_mean(films))[:, 0]


def make_updaters(net: nn.Module, rate: float) -> list[torch.optim.Optimizer]:
    """Return Adam for params with whole gradients, and SparseAdam for tables, of which a batch changes some rows."""
    tables = [module.weight for module in net.modules() if isinstance(module, nn.Embedding)]
    others = [param for param in net.parameters() if not any(param is table for table in tables)]
    return [torch.optim.SparseAdam(tables, lr=rate), torch.optim.Adam(others, lr=rate)]
