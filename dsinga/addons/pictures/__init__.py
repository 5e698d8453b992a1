"""Draws pictures of nets, of plans (predicted training times) and of runs."""
