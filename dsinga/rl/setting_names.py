"""Names of settings of algorithms and runs: an unknown one is an error with the nearest, or with what to write."""

from __future__ import annotations

import functools

from dsinga import arguments

# Settings of other packages, with what to write here.
INSTEAD = {
    "gamma": "use discount",
    "gae_lambda": "use decay",
    "lam": "use decay",
    "learning_rate": "give updater=dsinga.nn.Adam(learning_rate)",
    "lr": "give updater=dsinga.nn.Adam(learning_rate)",
    "n_epochs": "use epochs",
    "clip_range": "use clip",
    "clip_coef": "use clip",
    "ent_coef": "use entropy_scale",
    "vf_coef": "use value_scale",
    "max_grad_norm": "use max_gradient_norm",
    "tau": "use target_share",
    "target_update_interval": "use target_every",
    "exploration_initial_eps": "use first_epsilon",
    "exploration_final_eps": "use last_epsilon",
    "exploration_fraction": "use epsilon_steps, a number of steps",
    "batch_size": "PPO has minibatches, parts of a rollout; a replay memory has rl.ReplaySettings(batch_size=...)",
    "buffer_size": "give rl.train replay=rl.ReplaySettings(capacity=...)",
    "learning_starts": "give rl.train replay=rl.ReplaySettings(learn_after=...)",
    "train_freq": "give rl.train replay=rl.ReplaySettings(learn_every=...)",
    "n_steps": "give rl.train rollout_steps",
    "total_timesteps": "use steps",
    "timesteps": "use steps",
    "n_envs": "use environments",
    "num_envs": "use environments",
    "num_environments": "use environments",
    "num_actors": "use actors",
    "train_steps": "use steps",
    "disp_freq": "use log_every",
    "test_freq": "use evaluate_every",
    "checkpoint_freq": "use checkpoint_every, a number of steps of environments",
    "capacity": "give replay=rl.ReplaySettings(capacity=...)",
    "learn_after": "give replay=rl.ReplaySettings(learn_after=...)",
    "learn_every": "give replay=rl.ReplaySettings(learn_every=...)",
    "prioritized": "give replay=rl.ReplaySettings(prioritized=True)",
    "discount": "PPO and its kin take it; else give rl.train replay=rl.ReplaySettings(discount=...)",
    "verbose": "rl.train has progress=False, which shows nothing",
    "device": "agents learn on the CPU",
}


check_settings = functools.partial(arguments.check_settings, instead=INSTEAD)
