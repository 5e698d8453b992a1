"""What users write: layers, losses, metrics, optimizers and schedules in the words of Keras."""
