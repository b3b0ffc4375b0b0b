"""What an act is: a typed function of a chapter, its parameters, its context and its answer.

A function's annotated parameters say how a value is read, what bounds it and how it is described. They are
read once, here; commands, endpoints and their description are made from what is found, in `analyzer.faces`.
"""
