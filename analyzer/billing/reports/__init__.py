"""Reports of closed days: their amounts, corrections and origin, and the files that have them.

`day_report`, `day_status`, `day_origin`, `booked_corrections` and `usage_amounts` read the database.
`report_lines`, `row_formats` and `parquet_rows` write; `atomic_files` whole or not at all; `manifest` and
`file_audit` say and check what is in a file.
"""
