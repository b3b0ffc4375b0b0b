"""Request records out of files: one that is followed, and files that are read once."""

from analyzer.files.file_sources import FollowedFile, ImportedFiles, OpenFiles

__all__ = ["FollowedFile", "ImportedFiles", "OpenFiles"]
