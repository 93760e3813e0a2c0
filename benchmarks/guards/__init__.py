"""Guards beside fine-tuning and PEFT's OSF and LoRA: `make guards`, python -m benchmarks.guards.

A small transformer and a small CNN learn tasks of digits one after another. After the first, which
is the same for all, every contender learns each new task to the same validation accuracy; what is
measured is what it has kept of the old ones, and at what cost. `models` and `tasks` are what is
learnt, `contenders` are the ways to learn, `learning` is how, `cost` has time and memory.
"""
