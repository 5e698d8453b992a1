"""Algorithm: the base class of algorithms that learn a model's params from experience, and default updaters."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from dsinga.base.errors import UserError
from dsinga.data import AlgorithmRecords
from dsinga.data.conversion import record_dtype
from dsinga.engine.local_net import LocalNet, Means
from dsinga.job import ChangeMethod, Job, JobError, LayerConf, LayerType, LRGenConf, UpdaterConf, UpdaterType
from dsinga.job.component import Settings
from dsinga.reading.bind_records import bind_records, with_batchsize
from dsinga.rl.checks import check_model_and_spaces, check_settings, take_settings
from dsinga.rl.environments.spaces import DiscreteSpace, Spaces
from dsinga.rl.experience import Rollout, Sampled, Transitions
from dsinga.rl.model import Model
from dsinga.rl.recurrence import HiddenStates, Recurrence, carried_layers, state_input, with_state_inputs
from dsinga.rl.reinforcement_conf import check_agents_updater
from dsinga.training.local_updater import LocalUpdater


class Algorithm(ABC):
    """Base class of algorithms, which learn a model's params, for any net and environment.

    A subclass adds input and loss layers to the model, chooses actions, and learns from experience. Experience is a
    :class:`Rollout` if ``on_policy``, else :class:`Transitions` of a replay memory. If ``corrects_older_actions``,
    older params can have chosen a rollout's actions. If ``learns_sequences``, recurrent layers can ``carry`` hidden
    states from step to step.

    A subclass can declare settings in a class ``Conf``. Its constructor and jobs accept them by name; they are in
    ``self.settings``.

    Args:
        model: the net.
        spaces: the environment's spaces.
        layers: the layers that the algorithm adds.
        examples: an array (1, ...) for each added input layer, by name; only shapes and dtypes matter.
        labels: labels (1,) or (1, ...) of the observation, int64 or float32, if layers read labels from the model's
            input layer; then :meth:`update` requires labels. Only shape and dtype matter.
        updater: the updater, such as ``nn.Adam(learning_rate=3e-4)``; defaults to ``default_updater``.
        seed: determines the initial params.

    Attributes:
        params: float32 arrays by name.
        updater: the updater with its state.
        net: the net with the algorithm's layers, for any batch size.
        examples: an array (1, ...) for each input layer, by name.
        sampled: with a replay memory, environment steps with actions from ``sample``.
        recurrence: computes a model with hidden states; else None.

    Raises UserError if the net does not fit the spaces.
    """

    Conf: ClassVar[type[Settings]]
    settings: Any = None
    default_updater: ClassVar[UpdaterConf | None] = None
    on_policy: ClassVar[bool] = True
    corrects_older_actions: ClassVar[bool] = False
    sampled: int = 0
    learns_sequences: ClassVar[bool] = False

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Make the constructor accept and check settings, model, spaces and all names."""
        super().__init_subclass__(**keywords)
        if "Conf" in vars(cls):
            take_settings(cls)
        check_settings(cls, check_model_and_spaces)

    def __init__(
        self,
        model: Model,
        spaces: Spaces,
        *,
        layers: Sequence[LayerConf] = (),
        examples: Mapping[str, np.ndarray] | None = None,
        labels: np.ndarray | None = None,
        updater: UpdaterConf | None = None,
        seed: int = 0,
    ):
        self.spaces, self.seed, self._label_example = spaces, seed, labels
        if isinstance(updater, UpdaterConf):
            check_agents_updater(updater)
        model.check_observations(spaces.observation)
        carried = carried_layers(model)
        if carried and not self.learns_sequences:
            raise UserError(
                f"{type(self).__name__} learns from single steps, but the model's layer {next(iter(carried))!r} "
                "carries its state from step to step; learn by PPO or A2C, or leave carry out"
            )
        self.model = with_state_inputs(model)
        inputs = {model.input: np.zeros((1, *spaces.observation.shape), spaces.observation.dtype)}
        inputs |= {state_input(name): np.zeros((1, size), np.float32) for name, size in carried.items()}
        self.examples = {**inputs, **(examples or {})}
        try:
            self.net = LocalNet(
                self.model.job(layers, updater or copy.deepcopy(self.default_updater), seed),
                self.examples,
                self.labels_by_layer(labels),
                threads=1,
                is_small=True,
            )
        except JobError:  # perhaps a head has a wrong size for a loss
            self.net = LocalNet(self.model.job(), inputs)
            self.check_heads()
            raise
        self.check_heads()
        self.recurrence = Recurrence(self.model, carried, self.net, self.examples) if carried else None
        self.params = self.net.initial_params()
        self.updater = self.net.updater()

    @property
    def updaters(self) -> Sequence[LocalUpdater]:
        """All updaters (optimizers) of the params."""
        return [self.updater]

    @property
    def metric_names(self) -> Sequence[str]:
        """The names of metrics that :meth:`learn` may return; empty if unknown."""
        return ()

    def check_heads(self) -> None:  # noqa: B027, by default any heads will do
        """Raise UserError unless the heads have the algorithm's sizes; call :meth:`check_head`."""

    @abstractmethod
    def predict(self, observations: np.ndarray) -> np.ndarray:
        """Return each observation's best action: (N,) int64, or (N, n) float32."""

    @abstractmethod
    def sample(self, observations: np.ndarray, rng: np.random.Generator) -> Sampled:
        """Return an exploring action for each of N observations (N, ...)."""

    @abstractmethod
    def learn(self, batch: Any) -> dict[str, float]:
        """Update the params from experience, and return metrics such as "loss"."""

    def hidden_states(self, count: int) -> HiddenStates | None:
        """Return ``count`` environments' initial hidden states; None if the model has none."""
        return None if self.recurrence is None else self.recurrence.hidden_states(count)

    def errors(self, batch: Transitions) -> np.ndarray:
        """Return errors (B,) of transitions for prioritised replay. Raises UserError if there are none."""
        raise UserError(f"{type(self).__name__} has no errors of transitions; use a replay memory without priorities")

    def act_as(self, actor: int, actors: int, params: dict[str, np.ndarray], sampled: int) -> None:
        """Make this copy act as one of ``actors`` remote actors, with the given params.

        ``sampled`` counts the steps of all actors. A subclass can make each actor explore differently.
        """
        self.params, self.sampled = params, sampled

    def heads(self, observations: np.ndarray, params: Mapping[str, np.ndarray] | None = None) -> tuple[np.ndarray, ...]:
        """Return the heads' outputs, each (N, ...), by default with ``self.params``."""
        heads, params = self.model.heads, self.params if params is None else params
        outputs = self.net.forward(params, observations, layers=heads).outputs
        return tuple([outputs[head] for head in heads])

    def update(self, batch: Mapping[str, np.ndarray], labels: np.ndarray | None = None) -> Means:
        """Do an updater step for a batch: arrays by input layer, and labels."""
        gradients, metrics = self.net.backward(
            self.params, batch, self.labels_by_layer(labels), step=self.updater.steps
        )
        self.updater.step(self.params, gradients)
        return metrics

    def labels_by_layer(self, labels: np.ndarray | None) -> dict[str, np.ndarray] | None:
        """Return the labels by input layer, as :class:`LocalNet` requires."""
        return None if labels is None else {self.model.input: labels}

    def job(self, rows: int) -> Job:
        """Return a job of the net with the algorithm's layers, fed with ``rows`` rows, not a store."""
        return experience_job(self.net.job, self.examples, rows, self.labels_by_layer(self._label_example))

    def state(self) -> dict[str, Any]:
        """Return the state of learning: nested dicts of arrays and plain values."""
        steps = self.updater.steps
        return {"algorithm": type(self).__name__, "params": self.params, "updater": self.updater.state, "steps": steps}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state. Raises UserError if it is for another algorithm, updater or net."""
        name = type(self).__name__
        if state.get("algorithm", name) != name:
            raise UserError(f"the saved agent learns by {state['algorithm']}, this one by {name}; make the same one")
        params = self._copy_params(state["params"])
        self.updater.resume_learnt(state["updater"], int(state["steps"]))
        self.params = params

    def take_params(self, params: Mapping[str, np.ndarray]) -> None:
        """Copy params. Raises UserError if they are for another net."""
        self.params = self._copy_params(params)

    def _copy_params(self, params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        copies = {name: np.array(value, np.float32) for name, value in params.items()}
        shapes = {name: param.shape for name, param in self.net.net.params.items()}
        if {name: value.shape for name, value in copies.items()} != shapes:
            raise UserError("the saved params are those of another net; restore them into the model that was saved")
        return copies

    def check_scores(self, head: str) -> None:
        """Raise UserError if the head of discrete actions ends in a softmax: the algorithm applies one."""
        conf = next(layer for layer in self.model.layers if layer.name == head)
        if conf.type is LayerType.kSoftmax and isinstance(self.spaces.action, DiscreteSpace):
            name = type(self).__name__
            raise conf.error(f"the head {head!r} ends in a softmax, but {name} takes scores; leave the softmax out")

    def check_head(self, head: str, size: int, what: str) -> None:
        """Raise UserError unless the head has the ``size`` numbers that ``what`` needs."""
        given = int(np.prod(self.net.feature_shape(head)))
        if given != size:
            raise UserError(
                f"{type(self).__name__} needs {size} outputs of the head {head!r} for {what}, but it has {given}; "
                "change the net"
            )


def experience_job(
    job: Job, examples: Mapping[str, np.ndarray], rows: int, labels: Mapping[str, np.ndarray] | None = None
) -> Job:
    """Return a job with input layers fed with ``rows`` rows instead of a store.

    ``examples`` has an array (n, ...) for each input layer, ``labels`` any labels; only shapes and dtypes matter.
    """
    sources = {
        name: AlgorithmRecords(rows, array.shape[1:], record_dtype(array.dtype), (labels or {}).get(name))
        for name, array in examples.items()
    }
    return bind_records(with_batchsize(job, rows), sources)


Experience = Rollout | Transitions


def adam(learning_rate: float, epsilon: float = 1e-7) -> UpdaterConf:
    """Return the updater Adam, like ``nn.Adam``."""
    return _updater(UpdaterType.kAdam, learning_rate, epsilon, adam_conf={"bias_correction": True})


def rmsprop(learning_rate: float, rho: float, epsilon: float) -> UpdaterConf:
    """Return the updater RMSProp, like ``nn.RMSprop``."""
    return _updater(UpdaterType.kRMSProp, learning_rate, epsilon, rmsprop_conf={"rho": rho})


def _updater(type_: UpdaterType, rate: float, epsilon: float, **settings: Any) -> UpdaterConf:
    learning_rate = LRGenConf(type=ChangeMethod.kFixed, base_lr=rate)
    return UpdaterConf(type=type_, learning_rate=learning_rate, delta=epsilon, **settings)


def copy_params(params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a copy of params (a hard update)."""
    return {name: value.copy() for name, value in params.items()}


def follow(target: Mapping[str, np.ndarray], params: Mapping[str, np.ndarray], share: float) -> None:
    """Move ``target`` in place towards ``params``: (1 - share)·target + share·params.

    This is the soft update of Lillicrap et al. 2016, with ``share`` as tau; a share of 1 copies.
    """
    for name, value in target.items():
        if share < 1:
            value += np.float32(share) * (params[name] - value)
        else:
            value[...] = params[name]
