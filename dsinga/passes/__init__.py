"""What is run on batches: the training step, evaluation and forward passes."""
