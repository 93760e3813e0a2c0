"""Methods that pull weights to where earlier tasks left them."""
