"""The training loop: what happens between the steps that an engine computes."""
