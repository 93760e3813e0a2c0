"""`python -m classgrad` is the command line."""

from classgrad.cli import main

if __name__ == "__main__":
    main()
