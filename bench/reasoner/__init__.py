"""A tiny reasoning model: its task, tokenizer, training, reward and evaluation."""
