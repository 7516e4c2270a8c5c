"""Tokens on disk and the order they are trained in, without torch, so that login nodes can build them."""
