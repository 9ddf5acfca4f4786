"""The benchmark: what one machine does with the formats of the paper, each number beside what it is measured against.

    repro bench                     a short run (one to two minutes): every kind of row
    python -m repro.bench           the same where only torch, numpy, PyYAML (on a GPU: triton) are installed
    ... --full --json FILE          medians of many, all rows, kept with versions, device and date

Kinds of rows: products of matrices and packed storage (Table 1 of arXiv 2509.25149 is drawn from these), passes that
quantise a tensor, a linear layer forward and backward, a training step. What the machine lacks is said in its row.
"""
