"""The reasons behind the four techniques, measured on a trained checkpoint (an element that the paper does not have).

Section 4 of arXiv 2509.25149 argues: stochastic rounding removes the bias of quantised gradients, the Hadamard
transform shrinks the error of Wgrad, square scale blocks give the forward and the backward pass the same weight, a
block's amax is kept near FP8 precision. Each is a number that one forward and backward pass of a checkpoint yields,
per layer and at every size of model.

Command: ``python -m repro.mechanisms RUN --results results/tiny``.

Not here: training, and what the four techniques do to the loss (the experiments do that).
"""
