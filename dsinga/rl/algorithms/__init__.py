"""Reinforcement learning algorithms to choose from (DQN, PPO, IMPALA, ...), one file each."""
