"""How tasks are trained: settings, schedules, the loop, and measures of what came out."""
