"""The training loop and what it asks for: steps, learning rate, figures, reports."""
