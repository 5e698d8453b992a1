"""Algorithms of reinforcement learning, one file each."""

from dsinga.rl.algorithms import a2c, ddpg, dqn, es, impala, ppo, reinforce, td3
