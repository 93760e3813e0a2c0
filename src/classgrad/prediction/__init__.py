"""What turns features into answers: scores of heads and prototypes, calibration, accuracy."""
