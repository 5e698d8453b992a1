"""Input, label, image-augmentation and output layers: they read records and write results."""
