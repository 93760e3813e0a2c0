"""Methods that change the network: masks, columns, growth, decomposition."""
