"""Training: settings, schedules, the loop, the session that learns tasks, and metrics."""
