"""Speed of this package and of its peers: everything behind the scripts called benchmark."""
