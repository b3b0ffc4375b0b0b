"""Days for invoices: closed, frozen, corrected, reported, handed over, and proved.

- `days`: closing and correcting; `reports`: the files; `hand_over`: billing services
- `audit`: a day against its digest and its buckets
- `recount`: a second counter, which shares no code with the first; `day_recount` gives it the log, and
  `recount_inputs` what is in the database alone
"""
