"""The training loop: asks an engine for steps, and runs extensions (callbacks) between them."""
