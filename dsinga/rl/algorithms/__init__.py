"""Algorithms of reinforcement learning, one file each."""
