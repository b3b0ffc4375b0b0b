"""Parts of `gatelock audit`: closed days, report files, and counts of a second counter."""
