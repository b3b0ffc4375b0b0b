"""The second counter: counts the log of a closed day again, slowly and simply, to prove the first one.

It follows docs/spec/counter.md and shares no code with the first: it imports the standard library alone, and
reads plans as the JSON in which they are stored. What cannot be known from the log, such as whether an id was
still remembered after its horizon, is counted as possible: each amount has a least and a most value.
"""
