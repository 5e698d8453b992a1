"""Losses of policies and values: the layers by which algorithms of reinforcement learning train."""
