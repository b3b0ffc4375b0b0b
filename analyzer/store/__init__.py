"""Everything that is kept: counts with the offsets they came from, locks with their feed."""
