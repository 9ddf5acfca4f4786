"""Reproduction of "Pretraining Large Language Models with NVFP4" (arXiv 2509.25149)."""
