"""One method of each family: for what takes long, or depends little on the method."""

FAMILIES = ("cgp", "trgp", "owm", "ewc", "lwf", "er", "hat", "pgn", "apd")
