"""Training recipes: settings from the papers and their public code, and the commands built from them."""
