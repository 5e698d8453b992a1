"""Reinforcement learning, after PARL: models, algorithms and agents, which dsinga's training loop trains.

What to try first, and when to change it:

- learning rate: 0.0003 to 0.003 (PPO), 0.001 (DQN, DDPG). Raise it if the return rises slowly. Lower it if the return
  falls again, or if PPO's ``kl`` is above 0.03.
- ``environments``: 8. Raise it if the net has idle time.
- ``rollout_steps``: 128, for A2C 5 to 32. Raise it if rewards come late.
- ``discount``: 0.99. Raise it if an action shows its effect late. With a replay memory it is in ``ReplaySettings``.
- ``decay`` (lambda): 0.95. Lower it if advantages are noisy.
- ``epochs`` and ``minibatches`` of PPO: 4 and 4. Raise them if steps are expensive. Lower them if ``clip_fraction`` is
  above 0.3.
- ``entropy_scale``: 0. Raise it if ``entropy`` falls to 0 too early.
- ``epsilon_steps`` of DQN: a tenth of the run. Raise it if rewards are hard to find.
- ``actor_spread`` of DQN with ``actors``: 7, as in Ape-X, for many actors. Lower it if too few actions are random.
- ``noise_correlation`` of DDPG and TD3: 0; 0.99 if only a long push in one direction is rewarded, as in MountainCar.
- ``capacity`` and ``learn_after`` of a replay memory: 100,000 and 1,000. Raise them if returns rise and fall. Memory
  has 100,000 stacks of four images, 84 by 84, in 2.8 GB; each observation is kept once, as uint8.
- Transitions of ``n_steps`` end with their rollout: let ``rollout_steps`` be several times ``n_steps``.

Agents with memory: a ``nn.GRU`` or ``nn.SimpleRNN`` with ``carry=True`` carries its state from step to step; PPO and
A2C learn such a net. The state is 0 where an episode begins, and training, evaluation, actors and resumed runs carry
it by themselves. The gradient goes back to the beginning of the episode or of the rollout: ``rollout_steps`` is the
longest distance of cause and effect. A minibatch of PPO has all steps of some environments, so give at least as many
``environments`` as ``minibatches``. Other algorithms, ``nn.LSTM``, worker groups and ``central_inference`` refuse
such a model. In a loop of your own, pass ``agent.hidden_states(n)`` to ``agent.predict`` or :class:`Collector`, and
call its ``reset([i])`` when the episode of environment i has ended.

A loop of your own needs ``agent.sample``, ``agent.learn`` and :class:`Collector` only.
"""

from typing import TYPE_CHECKING, Any

from dsinga.base.components import lazy_names
from dsinga.base.registry import entries, is_user_code

if TYPE_CHECKING:
    from dsinga.rl.agent import Agent
    from dsinga.rl.agent_training import AgentResult, train
    from dsinga.rl.algorithm import Algorithm
    from dsinga.rl.algorithms.ddpg import DDPG, TD3
    from dsinga.rl.algorithms.dqn import DQN
    from dsinga.rl.algorithms.es import ES
    from dsinga.rl.algorithms.impala import IMPALA
    from dsinga.rl.algorithms.ppo import A2C, PPO
    from dsinga.rl.algorithms.reinforce import REINFORCE
    from dsinga.rl.collecting import Collector
    from dsinga.rl.environments.registered import make_environment, make_environments
    from dsinga.rl.environments.spaces import BoxSpace, DiscreteSpace, Space, Spaces, box
    from dsinga.rl.environments.vector_environment import EnvironmentStep, VectorEnvironment
    from dsinga.rl.evaluation import EvaluatedEpisodes, evaluate, record_episode
    from dsinga.rl.experience import Episode, EpisodeStatistics, Rollout, Sampled, Transitions
    from dsinga.rl.from_job import ReplaySettings
    from dsinga.rl.learning import OffPolicyLearning
    from dsinga.rl.model import Model
    from dsinga.rl.replay_memory import PrioritizedReplay, ReplayMemory

__all__ = [
    "A2C", "DDPG", "DQN", "ES", "IMPALA", "PPO", "REINFORCE", "TD3", "Agent", "AgentResult", "Algorithm", "BoxSpace",
    "Collector", "DiscreteSpace", "EnvironmentStep", "Episode", "EpisodeStatistics", "EvaluatedEpisodes", "Model",
    "OffPolicyLearning", "PrioritizedReplay", "ReplayMemory", "ReplaySettings", "Rollout", "Sampled", "Space", "Spaces",
    "Transitions", "VectorEnvironment", "box", "evaluate", "make_environment", "make_environments", "record_episode",
    "train",
]  # fmt: skip


def _algorithm(name: str) -> Any:
    """Return the class of an algorithm that is registered."""
    algorithms = {cls.__name__: cls for cls in entries("learning_algorithm").values() if not is_user_code(cls)}
    if name in algorithms:
        return algorithms[name]
    raise AttributeError(f"module 'dsinga.rl' has no attribute {name!r}")


if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _algorithm)
