"""The paper's figures and tables, one folder an element, and the two elements that it does not have.

Each folder holds figure.py (data, draw, claims), paper.yaml (what the paper states, what is needed, how it is judged)
and, for curves, paper.csv (the paper's own curves, read from the vector figures of arXiv 2509.25149v1). Run one with
`python -m paper_figures ELEMENT data|draw|claims --results results/tiny`.
"""
