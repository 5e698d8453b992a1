"""The passes over batches: the training step, evaluation and forward passes."""
