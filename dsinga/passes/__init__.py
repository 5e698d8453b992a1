"""What is run on batches: forward passes, generation, translation, predictions of fields."""
