"""Callers that a policy would lock: on a log (`look`), or on stored counts (`simulation`)."""
