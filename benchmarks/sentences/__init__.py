"""Intents of CLINC150 learnt in ten tasks: `make sentences`, python -m benchmarks.sentences.

`learner` is what a user has: a learner with frozen layers, in several orders of the tasks, and one
whose last blocks learn; how well it tells intents and sentences of no intent apart, and how long it
takes. `tuned` compares ways to tune the last blocks, task after task: with a guard, without, with
EWC, with PEFT's OSF and LoRA, and all tasks at once. `contenders` are these ways, `top` is what
they tune, `data` are the sentences.
"""
