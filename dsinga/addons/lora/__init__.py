"""Fine-tuning: LoRA (low-rank changes of dense layers, embeddings and convolutions) and gradual unfreezing."""
