"""Learning for years: a network that gets new tasks now and then, predicts, and is kept on disk."""
