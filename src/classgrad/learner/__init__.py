"""Long-term learning: a network that gets new tasks over the years, predicts, and is saved."""
