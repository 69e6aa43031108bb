"""What a model is shown and what is read from its replies: order, words, windows."""
