"""Algorithms of reinforcement learning, one file each, which importing this room registers."""

from dsinga.base.registry import load

load("learning_algorithm")
