"""Experiments: the runs behind a table or figure of a paper, and how they are carried out."""
