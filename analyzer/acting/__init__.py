"""Acts: typed functions of the chapters, with their parameters, their context and their answers.

A function's annotated parameters say how a value is read, what bounds it and how it is described. They are
read once, here; commands, endpoints and their description are made from what is found, in `analyzer.faces`.
"""
