"""What methods remember: subspaces, representations, groups of classes."""
