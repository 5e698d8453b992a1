"""Fine-tuning: LoRA, low-rank changes of dense layers and embeddings, and gradual unfreezing."""
