"""The configuration that ships with himori: Hydra groups, one option a file."""
