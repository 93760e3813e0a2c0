"""Methods that keep samples of earlier tasks."""
