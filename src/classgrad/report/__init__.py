"""Records for people: tables for the terminal, pages and pictures."""
