"""Evolution strategies (ES): learning without gradients, from the returns of randomly changed params."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np

from dsinga.base.arrays import ParamArrays
from dsinga.base.registry import register
from dsinga.job import UpdaterConf
from dsinga.job.component import Fault, Settings, setting
from dsinga.job.limits import Positive, Range
from dsinga.rl.algorithm import Algorithm, adam
from dsinga.rl.environments.spaces import Spaces, best_actions, policy_size
from dsinga.rl.experience import Sampled
from dsinga.rl.model import Model


@register("learning_algorithm", kES=4)
class ES(Algorithm):
    """Learns without gradients, from the returns of random changes of params (Salimans et al. 2017).

    Each generation has pairs of candidates: the params plus and minus the same normal noise (mirrored sampling). The
    updater moves the params along the noise, weighted by the returns' ranks.

    Args:
        model: the net; its first head is the policy, which takes its best actions.
        updater: defaults to Adam at a rate of 0.01.
        seed: determines the initial params and the noise.
    """

    class Conf(Settings):
        """Settings of kES."""

        population: Annotated[int, Range(2)] = setting(32, "the number of candidates of a generation, an even number")
        deviation: Positive = setting(0.05, "standard deviation of the noise that is added to a candidate's params")

        def faults(self) -> Iterator[Fault]:
            """Yield an error if the population is odd, because candidates come in pairs."""
            if self.population % 2:
                yield Fault(f"population is {self.population}; give an even number of at least 2", "population")

    settings: Conf
    default_updater: ClassVar = adam(0.01)

    def __init__(
        self,
        model: Model,
        spaces: Spaces,
        *,
        updater: UpdaterConf | None = None,
        seed: int = 0,
        **settings: Any,  # which are self.settings already
    ):
        super().__init__(model, spaces, updater=updater, seed=seed)
        self._evolving = [name for name, param in self.net.net.params.items() if param.trainable and not param.static]

    def check_heads(self) -> None:
        """Raise UserError unless the first head is a policy."""
        actions = self.spaces.action
        self.check_head(self.model.head(0, "the policy"), policy_size(actions), f"actions that are {actions}")

    def predict(self, observations: np.ndarray) -> np.ndarray:
        """Return the best action for each of N observations."""
        return self.actions(observations, self.params)

    def sample(self, observations: np.ndarray, rng: np.random.Generator) -> Sampled:
        """Return each observation's best action; only noise in the params explores."""
        return Sampled(self.predict(observations), {})

    def actions(self, observations: np.ndarray, params: ParamArrays) -> np.ndarray:
        """Return the best action for each of N observations, computed with a candidate's params."""
        head = self.model.heads[0]
        outputs = self.net.forward(params, observations, layers=(head,)).outputs
        return best_actions(outputs[head], self.spaces.action)

    def candidates(self) -> Iterator[ParamArrays]:
        """Yield the params of this generation's candidates, to play an episode with each."""
        for pair in range(self.settings.population // 2):
            noise = self._noise(pair)
            for sign in (self.settings.deviation, -self.settings.deviation):
                changed = {name: self.params[name] + np.float32(sign) * noise[name] for name in noise}
                yield {**self.params, **changed}

    @property
    def metric_names(self) -> Sequence[str]:
        """The names of the metrics that :meth:`learn` returns."""
        return "candidate_return", "best_candidate_return"

    def learn(self, batch: Sequence[float]) -> dict[str, float]:
        """Update the params from the returns of all candidates, in order, and begin the next generation."""
        ranks = centred_ranks(np.asarray(batch, np.float64))
        sums = {name: np.zeros_like(self.params[name]) for name in self._evolving}
        for pair, weight in enumerate(ranks[::2] - ranks[1::2]):
            for name, noise in self._noise(pair).items():
                sums[name] -= np.float32(weight / (self.settings.population * self.settings.deviation)) * noise
        self.updater.step(self.params, sums)
        return {"candidate_return": float(np.mean(batch)), "best_candidate_return": float(np.max(batch))}

    def _noise(self, pair: int) -> ParamArrays:
        """Return the noise of a pair of candidates, equal in repeated calls."""
        rng = np.random.default_rng((self.seed, self.updater.steps, pair))
        return {name: rng.standard_normal(self.params[name].shape, np.float32) for name in self._evolving}


def centred_ranks(returns: np.ndarray) -> np.ndarray:
    """Replace returns by their ranks, -0.5 (lowest) to 0.5 (highest); equal returns share their mean rank."""
    _, positions, counts = np.unique(returns, return_inverse=True, return_counts=True)
    means = np.cumsum(counts) - (counts + 1) / 2
    return means[positions] / (len(returns) - 1) - 0.5
