"""The training loop: calls an engine for steps, and runs extensions (callbacks) between them."""
