"""Executors of jobs: processes on this machine, or a Ray cluster."""
