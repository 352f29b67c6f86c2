"""What runs while a cluster lives: the relay."""
