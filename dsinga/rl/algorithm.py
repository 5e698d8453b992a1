"""The base class of reinforcement learning algorithms: params, updater, and losses added to a model."""

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
    """Base class of an algorithm: adds losses to a model, chooses actions, and learns the params.

    Experience is a :class:`Rollout` if ``on_policy``, else :class:`Transitions` of a replay memory. If
    ``corrects_older_actions``, older params can have chosen a rollout's actions. If ``learns_sequences``, recurrent
    layers can ``carry`` hidden states from step to step.

    A subclass can declare settings in a class ``Conf``. Its constructor and jobs accept them by name; they are in
    ``self.settings``.

    Args:
        examples: an array (1, ...) for each added input layer, by name, for its shape and dtype.
        labels: labels (1,) or (1, ...), int64 or float32, if layers read labels from the model's input layer.
        updater: the updater, such as ``nn.Adam(learning_rate=3e-4)``; defaults to ``default_updater``.

    Attributes:
        params: float32 arrays by name.
        updater: with its state.
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
        """Make a subclass's constructor check its settings, model, spaces and all argument names."""
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
        """Raise UserError unless the model's heads have the sizes that the algorithm needs; call :meth:`check_head`."""

    @abstractmethod
    def predict(self, observations: np.ndarray) -> np.ndarray:
        """Return each observation's best action: (N,) int64, or (N, n) float32."""

    @abstractmethod
    def sample(self, observations: np.ndarray, rng: np.random.Generator) -> Sampled:
        """Return an exploring action for each of N observations (N, ...)."""

    @abstractmethod
    def learn(self, batch: Any) -> dict[str, float]:
        """Update the params from a rollout or transitions; return metrics such as "loss"."""

    def hidden_states(self, count: int) -> HiddenStates | None:
        """Return initial hidden states for ``count`` environments; None if the net has no memory."""
        return None if self.recurrence is None else self.recurrence.hidden_states(count)

    def errors(self, batch: Transitions) -> np.ndarray:
        """Return each transition's temporal-difference error, (B,), as the priority in prioritised replay.

        Raises UserError if the algorithm has none.
        """
        raise UserError(f"{type(self).__name__} has no errors of transitions; use a replay memory without priorities")

    def act_as(self, actor: int, actors: int, params: dict[str, np.ndarray], sampled: int) -> None:
        """Prepare this copy to choose actions as one of ``actors`` remote actors, with new ``params``.

        A subclass can make each actor explore differently.
        """
        self.params, self.sampled = params, sampled

    def heads(self, observations: np.ndarray, params: Mapping[str, np.ndarray] | None = None) -> tuple[np.ndarray, ...]:
        """Compute the outputs of all heads for observations, each (N, ...), by default with ``self.params``."""
        heads, params = self.model.heads, self.params if params is None else params
        outputs = self.net.forward(params, observations, layers=heads).outputs
        return tuple([outputs[head] for head in heads])

    def update(self, batch: Mapping[str, np.ndarray], labels: np.ndarray | None = None) -> Means:
        """Do an updater step on a batch (arrays by input layer, and labels); return the metrics."""
        gradients, metrics = self.net.backward(
            self.params, batch, self.labels_by_layer(labels), step=self.updater.steps
        )
        self.updater.step(self.params, gradients)
        return metrics

    def labels_by_layer(self, labels: np.ndarray | None) -> dict[str, np.ndarray] | None:
        """Return labels in the form that :class:`LocalNet` requires, by input layer."""
        return None if labels is None else {self.model.input: labels}

    def job(self, rows: int) -> Job:
        """Return a job of the algorithm's net on batches of ``rows`` rows of experience, not a store."""
        return experience_job(self.net.job, self.examples, rows, self.labels_by_layer(self._label_example))

    def state(self) -> dict[str, Any]:
        """Return all that learning needs to continue bit for bit, as nested dicts."""
        steps = self.updater.steps
        return {"algorithm": type(self).__name__, "params": self.params, "updater": self.updater.state, "steps": steps}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state from :meth:`state`. Raises UserError if it is for another algorithm, updater or net."""
        name = type(self).__name__
        if state.get("algorithm", name) != name:
            raise UserError(f"the saved agent learns by {state['algorithm']}, this one by {name}; make the same one")
        params = self._copy_params(state["params"])
        self.updater.resume_learnt(state["updater"], int(state["steps"]))
        self.params = params

    def take_params(self, params: Mapping[str, np.ndarray]) -> None:
        """Replace the params by copies of the given ones. Raises UserError if they are for another net."""
        self.params = self._copy_params(params)

    def _copy_params(self, params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        copies = {name: np.array(value, np.float32) for name, value in params.items()}
        shapes = {name: param.shape for name, param in self.net.net.params.items()}
        if {name: value.shape for name, value in copies.items()} != shapes:
            raise UserError("the saved params are those of another net; restore them into the model that was saved")
        return copies

    def check_scores(self, head: str) -> None:
        """Raise UserError if a head of scores ends in a softmax, because the algorithm applies one."""
        conf = next(layer for layer in self.model.layers if layer.name == head)
        if conf.type is LayerType.kSoftmax and isinstance(self.spaces.action, DiscreteSpace):
            name = type(self).__name__
            raise conf.error(f"the head {head!r} ends in a softmax, but {name} takes scores; leave the softmax out")

    def check_head(self, head: str, size: int, what: str) -> None:
        """Raise UserError unless the head has ``size`` outputs, as ``what`` requires."""
        given = int(np.prod(self.net.feature_shape(head)))
        if given != size:
            raise UserError(
                f"{type(self).__name__} needs {size} outputs of the head {head!r} for {what}, but it has {given}; "
                "change the net"
            )


def experience_job(
    job: Job, examples: Mapping[str, np.ndarray], rows: int, labels: Mapping[str, np.ndarray] | None = None
) -> Job:
    """Return a job that reads ``rows`` rows of experience in memory instead of a store."""
    sources = {
        name: AlgorithmRecords(rows, array.shape[1:], record_dtype(array.dtype), (labels or {}).get(name))
        for name, array in examples.items()
    }
    return bind_records(with_batchsize(job, rows), sources)


Experience = Rollout | Transitions


def adam(learning_rate: float, epsilon: float = 1e-7) -> UpdaterConf:
    """Return settings of the updater Adam, with bias correction, as ``nn.Adam`` has."""
    return _updater(UpdaterType.kAdam, learning_rate, epsilon, adam_conf={"bias_correction": True})


def rmsprop(learning_rate: float, rho: float, epsilon: float) -> UpdaterConf:
    """Return settings of the updater RMSProp, as in ``nn.RMSprop``."""
    return _updater(UpdaterType.kRMSProp, learning_rate, epsilon, rmsprop_conf={"rho": rho})


def _updater(type_: UpdaterType, rate: float, epsilon: float, **settings: Any) -> UpdaterConf:
    learning_rate = LRGenConf(type=ChangeMethod.kFixed, base_lr=rate)
    return UpdaterConf(type=type_, learning_rate=learning_rate, delta=epsilon, **settings)


def copy_params(params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a copy of the params, for target params that later updates do not change."""
    return {name: value.copy() for name, value in params.items()}


def follow(target: Mapping[str, np.ndarray], params: Mapping[str, np.ndarray], share: float) -> None:
    """Move target params towards the newest ones, in place: (1 - share)·target + share·params (a soft update)."""
    for name, value in target.items():
        if share < 1:
            value += np.float32(share) * (params[name] - value)
        else:
            value[...] = params[name]
