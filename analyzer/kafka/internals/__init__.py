"""The only code that uses private names of kafka-python.

Each module replaces one behaviour of the client and checks at import that the private names it needs still
have the expected signatures.
"""
