"""Our speed beside that of other libraries: `make peers`, python -m benchmarks.peers.

Each library runs in a process of its own, a worker, with the packages of its own environment. For
every method the workers take turns: a worker asked for a measurement learns two tasks and answers
with the time the second took, including what the method does at its beginning and end.
`workload` is what all workers share; it imports nothing but torch.
"""
