"""Methods with a penalty that pulls weights towards those of earlier tasks."""
