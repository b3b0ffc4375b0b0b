"""Files of reports: their formats, how they are written whole or not at all, and what a manifest says."""
