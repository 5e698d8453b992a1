"""Environments for agents: your own and Gymnasium's, their spaces, and loops that step several together."""
