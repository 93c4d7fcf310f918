"""How to train each architecture: what the papers and their public code state, and the commands made of it."""
