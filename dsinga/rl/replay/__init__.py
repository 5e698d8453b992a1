"""Replay memories of transitions."""
