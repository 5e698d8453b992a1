"""Records of runs for others to read: MLflow, TensorBoard, CSV files, and Keras's callbacks that save models."""
