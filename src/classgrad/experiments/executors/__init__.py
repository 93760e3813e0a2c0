"""Where runs are carried out: processes of this machine, or a Ray cluster."""
