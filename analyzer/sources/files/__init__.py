"""Request records from files.

- `file_sources`: `FollowedFile` while it grows and rotates, `ImportedFiles` that are read once;
- `file_reader`: one file, recognised by its content;
- `compressed_files`: the plain content of gzip and zstd files;
- `line_reader`: a stream as lines, with digests of what was read.

Not here: what a line means (`analyzer.counting.records`), and where positions are stored.
"""

from analyzer.sources.files.file_reader import shown_path
from analyzer.sources.files.file_sources import FollowedFile, ImportedFiles, OpenFiles

__all__ = ["FollowedFile", "ImportedFiles", "OpenFiles", "shown_path"]
