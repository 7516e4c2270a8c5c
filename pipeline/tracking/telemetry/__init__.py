"""What the hardware did while a run trained: sampled on every node beside the workers, never by them."""
