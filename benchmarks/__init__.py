"""Speed and memory, compared with slow references and bounds: `make bench`, python -m benchmarks.

Every measurement is a function from a `Bench`, which times, to rows of the table; `__main__` lists
them. The network is AlexNet-5, the batch 64, and the protected subspaces are random ones with the
ranks of the recorded ten-task CIFAR-100 run. No dataset is needed.
"""
