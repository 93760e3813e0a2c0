"""Reports on runs: tables for the terminal, HTML pages and pictures."""
